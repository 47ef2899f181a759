"""An elastic job: its workers, and the supervisors that restart them after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from simulation.elastic.worker import SimWorker, random_config
from simulation.network import Network


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a job."""

    name: str
    #: Number of workers at the start.
    ranks: int
    steps: int
    think_s: float


class ElasticJob:
    """One job, which offers faults and the world what `simulation.job.Job` offers.

    Args:
        network: of the world.
        random: draws its settings.
        shape: its parameters.
        reducers: their addresses.
        record: receives what happens, for the checker.
    """

    def __init__(
        self,
        network: Network,
        random: Random,
        shape: Shape,
        reducers: tuple[str, ...],
        record: Callable[..., None],
    ) -> None:
        self.network, self.shape, self._record = network, shape, record
        self._config = random_config(
            random,
            job=shape.name,
            world_size=shape.ranks,
            rank=0,
            reducers=reducers,
            min_workers=min(shape.ranks, random.choice([1, 1, 2])),
        )
        self.ranks: list[SimWorker] = []
        #: Whether a worker has done all steps.
        self._is_ending = False
        #: Number of processes that start after a delay.
        self._to_start = 0

    def start(self, delays_s: list[float]) -> None:
        """Start the job, each worker after its delay."""
        for rank, delay_s in enumerate(delays_s):
            self.start_later(rank, delay_s)

    @property
    def is_done(self) -> bool:
        """Whether no worker is training or about to start."""
        return not self._to_start and not any(worker.is_alive for worker in self.ranks)

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return f"{self.shape.name}-{rank}"

    def member(self, rank: int) -> SimWorker | None:
        """Return the living process of a rank, or None."""
        return next((one for one in self.ranks if one.rank == rank and one.is_alive), None)

    @property
    def living(self) -> list[SimWorker]:
        """All living processes."""
        return [worker for worker in self.ranks if worker.is_alive]

    def start_later(
        self,
        rank: int,
        delay_s: float,
        *,
        variant: int = 0,
        steps: int = 1 << 30,
        host: str | None = None,
        is_twin: bool = False,
    ) -> None:
        """Start a process after a delay, unless its rank has a process by then.

        Args:
            rank: its rank.
            delay_s: in seconds.
            variant: its model; every variant but 0 is an error of the script.
            steps: number of steps after which it leaves.
            host: its host, if not that of the rank.
            is_twin: whether it starts even if its rank has a process.
        """
        self._to_start += 1

        def start() -> None:
            self._to_start -= 1
            if (self.member(rank) is None or is_twin) and not self._is_ending:
                worker = SimWorker(
                    self.network,
                    host or self.host(rank),
                    replace(self._config, rank=rank),
                    steps=self.shape.steps,
                    leaves_after=steps,
                    think_s=self.shape.think_s,
                    record=self._record,
                    on_end=self._on_end,
                    variant=variant,
                )
                self.ranks.append(worker)

        self.network.clock.at(self.network.clock.now + delay_s, start)

    def kill(self, rank: int) -> None:
        """End a rank's process as SIGKILL does; its supervisor starts another one."""
        worker = self.member(rank)
        if worker is not None:
            worker.record("killed")
            worker.kill()
            random = self.network.random
            self.start_later(worker.rank, random.choice([0.1, 1.0, 8.0, 20.0]) * random.random())

    def _on_end(self, worker: SimWorker, is_error: bool) -> None:
        if not is_error and worker.step >= self.shape.steps:
            self._is_ending = True
        elif is_error and not worker.variant:
            self.start_later(worker.rank, 0.1 + 2 * self.network.random.random())

    def where(self) -> str:
        """Return how far all workers are, for a run that does not end."""
        return str([(worker.name, worker.step, len(worker.threads)) for worker in self.living])
