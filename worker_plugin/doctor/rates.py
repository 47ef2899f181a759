"""How fast ranks and reducers are together: each pair alone, all to one, all to all, and Gloo's ring.

Sums go through an ordinary `ReductionState`, with its credit and chunks, in the doctor's own jobs. A training step
sends in the same way, so these rates apply to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.doctor.measure import Measured, measure
from worker_plugin.doctor.meeting import Meeting
from worker_plugin.state import ReductionState

#: Maximum seconds for all pairs, for all reducers in turn, for all to all, and for the ring.
ALONE_S, INCAST_S, TOGETHER_S, RING_S = 8.0, 6.0, 4.0, 3.0
#: Maximum seconds for one measurement, if there are many, and if there are few.
MANY_S, FEW_S = 0.5, 2.0
#: A pair with less than this fraction of what both of its ends reach with others is measured again, in at most this
#: many rounds.
DOUBTFUL_PART, AGAIN_MOST = 0.8, 2
#: A rank that waits longer than this for a rank or reducer names it, and the doctor ends.
TIMEOUT_S = 15.0

Row = dict[str, Any]


class Rates:
    """Measures for one rank of a meeting.

    Args:
        meeting: that of all ranks.
        job: the prefix of the jobs' names, or the whole name if tokens are for particular jobs only.
        is_exact: whether it is the whole name.
        settings: certificates and tokens.
    """

    def __init__(self, meeting: Meeting, job: str, *, is_exact: bool, settings: Mapping[str, Any]) -> None:
        self._meeting = meeting
        self._job = job
        self._is_exact = is_exact
        self._settings = settings

    def alone(self, reducers: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the rates of all ranks, each with a reducer that no other rank is using, in several rounds.

        Rounds with a pair that is slower than both of its ends are with others are measured again.

        Raises:
            ReductionError: a reducer failed.
            MeetingFailed: a rank did not arrive at a round.
        """
        rounds = max(self._meeting.ranks, len(reducers))
        seconds = min(max(ALONE_S / rounds, MANY_S), FEW_S)
        measured = []
        for number in range(rounds):
            measured.append(self._round(number, rounds, reducers, seconds))
            yield measured[-1]
        for number in doubtful(measured):
            yield self._round(number, rounds, reducers, seconds)

    def _round(self, number: int, rounds: int, reducers: Sequence[str], seconds: float) -> list[Row]:
        """Return the rates of disjoint pairs: rank i with reducer i + `number`."""
        rank, row = self._meeting.rank, None
        index = (rank + number) % rounds
        if index < len(reducers):
            with self._state(reducers[index : index + 1], rank=0, ranks=1, suffix=f"-{rank}") as state:
                row = self._row(reducers[index], measure(state.all_reduce, seconds, lambda rate: rate))
        rows = self._meeting.exchange(row, TIMEOUT_S + 2 * seconds, "the next reducer")
        return [row for row in rows if row is not None]

    def incast(self, reducers: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the rates of all ranks with one reducer at the same time. Raises the same errors as `alone`."""
        seconds = min(max(INCAST_S / len(reducers), MANY_S), FEW_S)
        for reducer in reducers:
            yield self._all([reducer], reducer, seconds)

    def together(self, reducers: Sequence[str]) -> list[Row]:
        """Return the rates of all ranks with all reducers at the same time. Raises the same errors as `alone`."""
        return self._all(reducers, "", TOGETHER_S)

    def ring(self) -> list[Row]:
        """Return the rates of Gloo's ring, using torch.distributed's default group.

        Raises:
            RuntimeError: Gloo's connections failed.
            MeetingFailed: a rank did not arrive.
        """

        def submit(tensor: torch.Tensor) -> torch.futures.Future[Any]:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            future: torch.futures.Future[Any] = work.get_future()
            return future

        return self._shared("", measure(submit, RING_S, self._slowest))

    def _all(self, reducers: Sequence[str], name: str, seconds: float) -> list[Row]:
        meeting = self._meeting
        with self._state(reducers, rank=meeting.rank, ranks=meeting.ranks, suffix="") as state:
            measured = measure(state.all_reduce, seconds, self._slowest)
        return self._shared(name, measured)

    def _shared(self, reducer: str, measured: Measured) -> list[Row]:
        rows: list[Row] = self._meeting.exchange(
            self._row(reducer, measured), 2 * TIMEOUT_S, "the next measurement"
        )
        return rows

    def _row(self, reducer: str, measured: Measured) -> Row:
        """Return a rate in the form that `reducer doctor --facts` reads."""
        rate, resent = measured.bytes_per_s, measured.resent
        return {"rank": self._meeting.rank, "reducer": reducer, "bytes_per_s": rate, "resent": resent}

    def _slowest(self, rate: float) -> float:
        return float(min(self._meeting.exchange(rate, TIMEOUT_S, "a measurement")))

    def _state(self, reducers: Sequence[str], *, rank: int, ranks: int, suffix: str) -> ReductionState:
        return ReductionState(
            list(reducers),
            job=self._job if self._is_exact else self._job + suffix,
            rank=rank,
            world_size=ranks,
            timeout_s=TIMEOUT_S,
            join_timeout_s=TIMEOUT_S,
            **self._settings,
        )


def doubtful(rounds: Sequence[Sequence[Row]]) -> list[int]:
    """Return the numbers of at most AGAIN_MOST rounds in which other programs may have slowed a pair."""
    rows = [row for round_ in rounds for row in round_]
    best = {
        row[end]: max(other["bytes_per_s"] for other in rows if other[end] == row[end])
        for row in rows
        for end in ("rank", "reducer")
    }

    def part(row: Row) -> float:
        possible: float = min(best[row["rank"]], best[row["reducer"]])
        return row["bytes_per_s"] / possible if possible else 1.0

    least = {number: min(map(part, round_), default=1.0) for number, round_ in enumerate(rounds)}
    found = [number for number in least if least[number] < DOUBTFUL_PART]
    return sorted(found, key=lambda number: least[number])[:AGAIN_MOST]


def better(rows: Sequence[Row], again: Sequence[Row]) -> list[Row]:
    """Return the faster of each pair's rates, because other programs can only make a rate slower."""
    best: dict[tuple[int, str], Row] = {}
    for row in (*rows, *again):
        pair = row["rank"], row["reducer"]
        if pair not in best or row["bytes_per_s"] > best[pair]["bytes_per_s"]:
            best[pair] = row
    return list(best.values())
