"""Several runs whose ranks chose the same job name, at the same reducers: the real cores, every interleaving.

Each process has its own number, which stands for its rank in `State_` and in its contributions. Unlike in `World`,
ranks may be refused, and a refusal may arrive after the time during which a rank answers it by redialling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from model_check.explorer import Violation
from model_check.state import State_, put
from model_check.world import CHUNK_BYTES, World
from reduction.errors import JobBusy, ReductionError, StaleInstance, WorkerLost, from_code
from reduction.model import Abort

from worker_plugin.core import events as we
from worker_plugin.core.identity import Identity
from worker_plugin.core.membership.roster import BUSY_S
from worker_plugin.core.rank import RankCore, State


class Clusters(World):
    """Runs of one job. A run consists of its existing ranks, which are `size` if none is missing.

    Args:
        runs: their ranks, as in `[(0, 1), (0, 1)]`.
        size: the world size of all runs.
        reducers: number of reducers.
        mortal: number of the process that may die, if any.
    """

    def __init__(
        self, runs: Sequence[Sequence[int]], size: int, *, reducers: int = 1, mortal: int | None = None
    ) -> None:
        #: Run and rank of every process.
        self.processes = [(run, rank) for run, ranks in enumerate(runs) for rank in ranks]
        self.size = size
        super().__init__(
            reducers=reducers,
            collectives=1,
            ranks=len(self.processes),
            numel=1,
            is_hasty=False,
            mortal=mortal,
        )

    def _communicator(self, rank: int) -> RankCore:
        run, number = self.processes[rank]
        identity = Identity(
            job="job",
            run=f"run {run}",
            instance=bytes([64 + run]) * 16 if number == 0 else b"",
            nonce=bytes([rank]) * 16,
            host=f"host{rank}",
            rank=number,
            world_size=self.size,
            chunk_bytes=CHUNK_BYTES,
            credit_bytes=self.credit_bytes,
            timeout_s=600,
            stall_warn_s=600,
            join_timeout_s=60,
            close_timeout_s=5,
        )
        return RankCore(identity, [f"reducer{index}" for index in range(self.k)])

    def start(self, **budget: int) -> State_:
        """Return the state in which all have issued their collective and none has dialled."""
        state = super().start(**budget)
        for rank in range(self.n):
            state = self._rank(state, rank, we.Issued(self.collective), 0.0)
        return state

    def _summed(self, core: RankCore) -> list[int]:
        run, _ = self.processes[self._number_of(core)]
        return [number for number, (other, _) in enumerate(self.processes) if other == run]

    # ---- steps ----

    def _frame_steps(self, state: State_) -> Iterator[tuple[str, State_]]:
        yield from super()._frame_steps(state)
        for stream in state.streams:
            if stream.down and stream.rank_end and _is_busy(stream.down[0]):
                rest = stream._replace(down=stream.down[1:])
                # The first refusal was long ago.
                event = we.Received(stream.reducer, stream.down[0])
                after = self._rank(put(state, rest), stream.rank, event, BUSY_S + 1)
                yield f"rank {stream.rank} - reducer {stream.reducer}: busy for long", after

    def _may_redial(self, state: State_) -> bool:
        return any(self._can_dial(state, rank) for rank in self._alive(state))

    def _can_dial(self, state: State_, rank: int) -> bool:
        core = self._boxes[state.ranks[rank]].core
        standing = {stream.reducer for stream in state.streams if stream.rank == rank and not stream.is_cut}
        return core.state is State.OPEN and len(standing) < self.k

    # ---- what must hold ----

    def is_goal(self, state: State_) -> bool:
        """Return whether every process has ended, or waits for a process of its run that is missing or has failed.

        Such a wait has a time limit.
        """
        return all(self._has_ended(state, rank) or self._waits(state, rank) for rank in range(self.n))

    def succeeded(self, state: State_) -> set[int]:
        """Return the complete runs in which every rank has its sum."""
        runs = {run for run, _ in self.processes}
        return {run for run in runs if self._is_whole(run) and self._all_hold(state, run)}

    def _all_hold(self, state: State_, run: int) -> bool:
        members = [number for number, (other, _) in enumerate(self.processes) if other == run]
        return all(
            state.ranks[one] >= 0 and self._boxes[state.ranks[one]].core.window.held == self.collectives
            for one in members
        )

    def _is_whole(self, run: int) -> bool:
        return sum(other == run for other, _ in self.processes) == self.size

    def _waits(self, state: State_, rank: int) -> bool:
        run = self.processes[rank][0]
        others = [number for number, (other, _) in enumerate(self.processes) if other == run]
        return not self._is_whole(run) or any(self._is_gone(state, other) for other in others)

    def _may_relay(self, state: State_, error: ReductionError) -> bool:
        return self._is_allowed(state, error)

    def _check_failure(self, state: State_, rank: int, error: ReductionError) -> None:
        if not self._is_allowed(state, error):
            raise Violation(f"process {rank} failed: {type(error).__name__}: {error}")

    def _is_allowed(self, state: State_, error: ReductionError) -> bool:
        if isinstance(error, WorkerLost):
            return any(self._has_ended(state, rank) for rank in range(self.n))
        return isinstance(error, (JobBusy, StaleInstance)) and "host" in str(error)


def _is_busy(frame: Any) -> bool:
    return isinstance(frame, Abort) and isinstance(from_code(frame.code, frame.message), JobBusy)
