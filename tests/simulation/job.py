"""A training job: lives of its ranks, their collectives, and a launcher that restarts them after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from reduction.errors import ReductionError
from reduction.limits import ID_BYTES
from reduction.model import Collective, DType, Place, ReduceOp
from simulation.network import Network
from simulation.rank import SimRank

from worker_plugin.core import events
from worker_plugin.core.identity import Identity

#: Types that are reduced: those whose sums the checker can compute on its own.
DTYPES = (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16, DType.INT32, DType.INT64)
NUMELS = (0, 1, 7, 256, 257, 1000, 3000)
TIMEOUT_S, JOIN_TIMEOUT_S = 120.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of a job."""

    name: str
    ranks: int
    collectives: int
    #: Number of collectives that may be in flight.
    depth: int
    #: Mean computing time before each collective, in seconds.
    think_s: float
    checksums: bool
    chunk_bytes: int | None
    credit_bytes: int | None
    #: Speed of each rank's clock, as a factor of true time.
    drifts: tuple[float, ...]
    #: Number of processes for which each rank, a rail of a node, stands.
    local_size: int
    #: Policy when a reducer is lost: "reshard", "wait" or "raise".
    on_reducer_loss: str


class Job:
    """One job.

    Args:
        network: of the world.
        seed: determines the contributions and the computing times.
        shape: its parameters.
        names: returns the addresses of the currently named reducers.
        place: returns the place that the processes of a host report.
        record: receives what happens, for the checker.
    """

    def __init__(
        self,
        network: Network,
        seed: str,
        shape: Shape,
        names: Callable[[], tuple[str, ...]],
        place: Callable[[str], Place],
        record: Callable[..., None],
    ) -> None:
        self.network, self.shape = network, shape
        self._seed, self._names, self._place, self._record = seed, names, place, record
        random = Random(f"{seed}/plan")
        self._plan = [self._collective(random) for _ in range(shape.collectives)]
        self.life, self.began_at = 0, 0.0
        self.ranks: list[SimRank] = []
        #: Number of collectives that each rank of this life has issued, and has results of.
        self._issued: list[int] = []
        self._held: list[int] = []
        #: The reducer addresses with which all ranks of this life start.
        self._told: tuple[str, ...] = ()
        #: Index in the plan of this life's first collective; the ones before are in a checkpoint.
        self._first = 0
        #: Ranks of this life whose next collective has a wrong size.
        self._strays: set[int] = set()
        #: Ranks of this life that close before the others, as soon as they have the results of all they have issued.
        self._quitters: set[int] = set()
        self._has_failed = False
        #: Whether the launcher has ended this life and not yet started the next one.
        self._is_ended = False
        self.is_done = False

    def start(self, delays_s: list[float] | None = None) -> None:
        """Start a life, each rank after its delay."""
        self.life += 1
        self.began_at = self.network.clock.now
        self._record(
            "life",
            job=self.shape.name,
            life=self.life,
            ranks=self.shape.ranks,
            local_size=self.shape.local_size,
            on_reducer_loss=self.shape.on_reducer_loss,
        )
        self._has_failed = self._is_ended = False
        self._told = self._names()
        self._strays.clear()
        self._quitters.clear()
        size = self.shape.ranks
        self.ranks = []
        self._issued, self._held = [0] * size, [0] * size
        for rank, delay_s in enumerate(delays_s or [0.0] * size):
            self.network.clock.at(
                self.network.clock.now + delay_s, partial(self._start_rank, rank, self.life)
            )

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return f"{self.shape.name}-{rank}"

    def member(self, rank: int) -> SimRank | None:
        """Return the current process of a rank, if it has started."""
        return next((one for one in self.ranks if one.identity.rank == rank and one.is_alive), None)

    def kill(self, rank: int) -> None:
        """End a rank's process as SIGKILL does; the launcher notices."""
        victim = self.member(rank)
        if victim is not None and not victim.is_over:
            self._record("killed", job=self.shape.name, life=self.life, rank=rank)
            victim.kill()
            self._plan_restart()

    def where(self) -> str:
        """Return how far all ranks are, for a run that does not end."""
        states = [(rank.identity.rank, rank.core.state.value, rank.core.window.held) for rank in self.ranks]
        return f"life {self.life}: {states}"

    def stray(self, rank: int) -> None:
        """Make a rank's next collective have a wrong size, which is an error of the script."""
        self._strays.add(rank)

    def quit(self, rank: int) -> None:
        """Make a rank close too early, which is an error of the script."""
        self._quitters.add(rank)

    def _start_rank(self, rank: int, life: int) -> None:
        if life != self.life or self._is_ended:
            return
        shape = self.shape
        identity = Identity(
            job=shape.name,
            instance=f"{shape.name}/{life}".encode().ljust(ID_BYTES, b".") if rank == 0 else b"",
            nonce=f"{shape.name}/{life}/{rank}".encode().ljust(ID_BYTES, b"."),
            host=self.host(rank),
            rank=rank,
            world_size=shape.ranks,
            chunk_bytes=shape.chunk_bytes,
            credit_bytes=shape.credit_bytes,
            timeout_s=TIMEOUT_S,
            stall_warn_s=5.0,
            join_timeout_s=JOIN_TIMEOUT_S,
            close_timeout_s=5.0,
            checksums=shape.checksums,
            local_size=shape.local_size,
            on_reducer_loss=shape.on_reducer_loss,
            place=self._place(self.host(rank)),
            run=str(life),
        )
        drift = shape.drifts[rank % len(shape.drifts)]
        member = SimRank(self.network, self.host(rank), identity, self._told, self._names, self, drift)
        self.ranks.append(member)
        self._think(member)

    # ---- the script of a rank ----

    def _think(self, rank: SimRank) -> None:
        wait_s = self.network.random.expovariate(1 / self.shape.think_s)
        self.network.clock.at(self.network.clock.now + wait_s, lambda: rank.take(lambda: self._go_on(rank)))

    def _go_on(self, rank: SimRank) -> None:
        """Issue the next collective, or leave after the last one."""
        number = rank.identity.rank
        if rank.is_over or rank not in self.ranks:
            return
        left = self.shape.collectives - self._first
        if number in self._quitters and 0 < self._held[number] == self._issued[number] < left:
            self._record("quit", job=self.shape.name, life=self.life, rank=number)
            rank.handle(events.Close())
        elif self._issued[number] < left:
            if self._issued[number] - self._held[number] < self.shape.depth:
                self._issue(rank, self._issued[number])
            self._think(rank)
        elif self._held[number] == left:
            rank.handle(events.Close())
        else:
            self._think(rank)

    def _issue(self, rank: SimRank, seq: int) -> None:
        number = rank.identity.rank
        collective = self._plan[self._first + seq]
        if number in self._strays:
            self._strays.discard(number)
            collective = Collective(
                collective.op, collective.dtype, collective.numel + 1, collective.fingerprint
            )
            self._record("strayed", job=self.shape.name, life=self.life, rank=number)
        contribution = contribution_of(f"{self._seed}/{self.life}/{number}/{seq}", collective)
        self._issued[number] += 1
        self._record(
            "issued",
            job=self.shape.name,
            life=self.life,
            rank=number,
            seq=seq,
            op=collective.op.name,
            dtype=collective.dtype.name,
            contribution=contribution,
        )
        rank.issue(collective, contribution)

    def _collective(self, random: Random) -> Collective:
        dtype = random.choice(DTYPES)
        op = random.choice([op for op in ReduceOp if dtype.allows(op)])
        return Collective(op, dtype, random.choice(NUMELS), 7)

    # ---- outcomes; see `rank.Owner` ----

    def on_result(self, rank: SimRank, seq: int, result: bytes) -> None:
        number = rank.identity.rank
        self._held[number] += 1
        self._record(
            "result", job=self.shape.name, life=self.life_of(rank), rank=number, seq=seq, result=result
        )

    def on_failed(self, rank: SimRank, error: ReductionError) -> None:
        self._record(
            "failed",
            job=self.shape.name,
            life=self.life_of(rank),
            rank=rank.identity.rank,
            error=type(error).__name__,
            text=str(error),
        )
        if rank in self.ranks:
            self._plan_restart()

    def on_over(self, rank: SimRank) -> None:
        self._record("over", job=self.shape.name, life=self.life_of(rank), rank=rank.identity.rank)
        if (
            len(self.ranks) == self.shape.ranks
            and all(one.is_over for one in self.ranks)
            and not self._has_failed
        ):
            self.is_done = True

    @staticmethod
    def life_of(rank: SimRank) -> int:
        return int(rank.identity.run)

    # ---- the launcher ----

    def _plan_restart(self) -> None:
        """Kill the remaining processes of this life after a while and start the next one, as torchrun does."""
        if self._has_failed:
            return
        self._has_failed = True
        # Mostly the survivors learn of the failure on their own before that, which the checker checks.
        at = self.network.clock.now + self.network.random.choice([0.0, 1.0, 20.0, 20.0])
        self.network.clock.at(at, self._end_life)

    def _end_life(self) -> None:
        self._is_ended = True
        for rank in self.ranks:
            if rank.is_alive and not rank.is_over:
                self._record("killed", job=self.shape.name, life=self.life, rank=rank.identity.rank)
            rank.kill()
        self._first += min(self._held)
        random = self.network.random
        delays_s = [random.choice([0.1, 0.5, 3.0]) * random.random() for _ in range(self.shape.ranks)]
        self.network.clock.at(self.network.clock.now + random.random(), lambda: self.start(delays_s))


def contribution_of(seed: str, collective: Collective) -> bytes:
    """Return a rank's contribution: arbitrary bits for integers, and no NaN for floats."""
    random = np.random.default_rng(list(seed.encode()))
    shape = collective.numel
    match collective.dtype:
        case DType.FLOAT32 | DType.FLOAT64 | DType.FLOAT16:
            kind = {DType.FLOAT32: "<f4", DType.FLOAT64: "<f8", DType.FLOAT16: "<f2"}[collective.dtype]
            return (random.standard_normal(shape) * 10).astype(kind).tobytes()
        case DType.BFLOAT16:
            return (random.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        case _:
            return (
                random.integers(-(1 << 62), 1 << 62, shape)
                .astype("<i8" if collective.dtype.itemsize == 8 else "<i4")
                .tobytes()
            )
