"""How fast ranks and reducers are together: each pair alone, all to one, all to all, and Gloo's ring.

Sums go through an ordinary `ReductionState`, with its credit and chunks, in jobs of the doctor's own.
A step sends the same way, so nothing here has to be believed that a step would not see.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.doctor.meeting import Meeting
from worker_plugin.state import ReductionState

#: Seconds for all pairs, for all reducers in turn, for all to all and for the ring.
ALONE_S, INCAST_S, TOGETHER_S, RING_S = 8.0, 6.0, 4.0, 3.0
#: The least and the most for one of them.
LEAST_S, MOST_S = 0.5, 2.0
#: The first part of a measurement does not count: TCP and the credit find the rate.
BEGINNING = 0.25
#: Bytes of the first sums, by which the rate is guessed.
GUESS_BYTES = 256 << 10
#: Bytes of a sum, and how many sums are under way.
PIECE_LEAST, PIECE_MOST, DEPTH = 64 << 10, 8 << 20, 4
#: A sum is to take so many seconds.
PIECE_S = 0.1
#: Whoever waits longer than this for a rank or reducer names it, and the doctor ends.
TIMEOUT_S = 15.0

Submit = Callable[[torch.Tensor], Any]
Agree = Callable[[float], float]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """One rate of one rank."""

    bytes_per_s: float
    resent: float


class Rates:
    """Measures for one rank of a meeting.

    Args:
        meeting: of all ranks.
        job: the first part of the jobs' names, or the whole name if tokens are for certain jobs only.
        is_exact: whether it is the whole name.
        settings: certificates and tokens.
    """

    def __init__(self, meeting: Meeting, job: str, *, is_exact: bool, settings: Mapping[str, Any]) -> None:
        self._meeting = meeting
        self._job = job
        self._is_exact = is_exact
        self._settings = settings

    def alone(self, reducers: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the rates of all ranks with reducers that no other rank uses at the time, in several rounds.

        Raises:
            ReductionError: a reducer failed.
            MeetingFailed: a rank did not come to a round.
        """
        rank, rounds = self._meeting.rank, max(self._meeting.ranks, len(reducers))
        seconds = min(max(ALONE_S / rounds, LEAST_S), MOST_S)
        for number in range(rounds):
            index, row = (rank + number) % rounds, None
            if index < len(reducers):
                with self._state(reducers[index : index + 1], rank=0, ranks=1, suffix=f"-{rank}") as state:
                    row = self._row(reducers[index], measure(state.all_reduce, seconds, lambda rate: rate))
            rows = self._meeting.exchange(row, TIMEOUT_S + 2 * seconds, "the next reducer")
            yield [row for row in rows if row is not None]

    def incast(self, reducers: Sequence[str]) -> Iterator[list[Row]]:
        """Yield the rates of all ranks with one reducer at the same time. Raises as `alone`."""
        seconds = min(max(INCAST_S / len(reducers), LEAST_S), MOST_S)
        for reducer in reducers:
            yield self._all([reducer], reducer, seconds)

    def together(self, reducers: Sequence[str]) -> list[Row]:
        """Return the rates of all ranks with all reducers at the same time. Raises as `alone`."""
        return self._all(reducers, "", TOGETHER_S)

    def ring(self) -> list[Row]:
        """Return the rates of Gloo's ring, by the default group of torch.distributed.

        Raises:
            RuntimeError: Gloo's connections failed.
            MeetingFailed: a rank did not come.
        """

        def submit(tensor: torch.Tensor) -> Any:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            return work

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
        """Return a rate as `reducer doctor --facts` reads it."""
        rate, resent = measured.bytes_per_s, measured.resent
        return {"rank": self._meeting.rank, "reducer": reducer, "bytes_per_s": rate, "resent": resent}

    def _slowest(self, rate: float) -> float:
        return float(min(self._meeting.exchange(rate, TIMEOUT_S, "a measurement")))

    @contextlib.contextmanager
    def _state(
        self, reducers: Sequence[str], *, rank: int, ranks: int, suffix: str
    ) -> Iterator[ReductionState]:
        state = ReductionState(
            list(reducers),
            job=self._job if self._is_exact else self._job + suffix,
            rank=rank,
            world_size=ranks,
            timeout_s=TIMEOUT_S,
            join_timeout_s=TIMEOUT_S,
            **self._settings,
        )
        with state:
            yield state


def measure(submit: Submit, seconds: float, agree: Agree) -> Measured:
    """Return the bytes of tensors per second that are summed, after a beginning that does not count.

    Args:
        submit: issues the sum of a tensor; all ranks issue the same ones.
        seconds: how long to measure, about.
        agree: makes of each rank's guess of the rate the one that counts for all.
    """
    guess = 0.0
    for nbytes in (GUESS_BYTES, 2 * GUESS_BYTES, 4 * GUESS_BYTES):
        guess = agree(_once(submit, nbytes))
    # Of small sums the way to and fro is the larger part, so the guess is far too low on a fast link.
    guess = agree(_once(submit, int(max(min(guess * PIECE_S * 2, 4 * PIECE_MOST), PIECE_LEAST))))
    nbytes = int(max(min(guess * PIECE_S, PIECE_MOST), PIECE_LEAST)) // 4 * 4
    count = max(2 * DEPTH, int(guess * seconds / nbytes))
    before = _segments()
    under_way: deque[Any] = deque()
    done: list[float] = []
    # Sums of zeros are zeros, so the tensors need not be filled anew, which would take time.
    tensors = [torch.zeros(nbytes // 4) for _ in range(DEPTH)]
    for number in range(count):
        if len(under_way) == DEPTH:
            under_way.popleft().wait()
            done.append(time.monotonic())
        under_way.append(submit(tensors[number % DEPTH]))
    while under_way:
        under_way.popleft().wait()
        done.append(time.monotonic())
    sent, resent = (after - earlier for after, earlier in zip(_segments(), before, strict=True))
    skipped = int(count * BEGINNING)
    rate = (count - 1 - skipped) * nbytes / max(done[-1] - done[skipped], 1e-9)
    return Measured(rate, resent / sent if sent > 0 else 0.0)


def _once(submit: Submit, nbytes: int) -> float:
    """Return the bytes per second of one sum."""
    tensor = torch.zeros(nbytes // 4)
    began = time.monotonic()
    submit(tensor).wait()
    return nbytes / (time.monotonic() - began)


def _segments() -> tuple[int, int]:
    """Return the TCP segments that this host has sent, and sent again; zeros where the kernel does not tell."""
    try:
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    except OSError:
        return 0, 0
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    table = dict(zip(names, values, strict=True))
    return int(table["OutSegs"]), int(table["RetransSegs"])
