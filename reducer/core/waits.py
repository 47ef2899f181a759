"""Ranks that the others wait for: reports while they wait, and statistics afterwards.

There are two measures of a rank's lateness. `last` adds up the waits of all chunks that the rank
completed, so ten chunks that wait for the same second count ten seconds. JobTotals counts the
wall-clock time in which at least one chunk waited only for this rank, which never exceeds the elapsed
time.
"""

from __future__ import annotations

from collections import deque

from reduction.model import Collective, LastRank, Waiting, WaitTimes

from reducer.core.totals import JobTotals

#: Maximum number of latest chunks in the percentiles.
LATEST = 1024
#: How long a chunk waits before the missing ranks are reported to the others, and the pause between
#: such reports, in seconds.
NEWS_S = 0.5
#: How long a chunk waits before the missing ranks are reported to the operator, in seconds. Workers
#: have the same default.
WARN_S = 5.0


class Waits:
    """The waits of one job. All times are in seconds, from a chunk's first push to its last."""

    def __init__(self, totals: JobTotals) -> None:
        self._totals = totals
        #: Wall-clock seconds in which at least one chunk waited only for this rank.
        self.waited_s: dict[int, float] = {}
        #: Number of chunks that wait only for this rank, and since when that time has not been counted.
        #: Ranks without such chunks are omitted.
        self._waits_for: dict[int, tuple[int, float]] = {}
        self._news_due = 0.0
        #: The collective or the epoch of the last warning to the operator.
        self._warned: tuple[int, int] | None = None
        self._chunks: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._latest: deque[float] = deque(maxlen=LATEST)

    def wait_for(self, rank: int, now: float) -> None:
        """Record that a chunk now waits only for this rank."""
        chunks, since = self._waits_for.get(rank, (0, now))
        self._waits_for[rank] = chunks + 1, since

    def settle(self, now: float) -> None:
        """Count the time of ongoing waits, so that they are visible before they end."""
        for rank, (chunks, since) in self._waits_for.items():
            self._count(rank, now - since)
            self._waits_for[rank] = chunks, now

    def forget(self) -> None:
        """End all waits, because their chunks are dropped. Time that `settle` has not counted is lost."""
        self._waits_for.clear()

    def _count(self, rank: int, waited_s: float) -> None:
        for seconds in (self.waited_s, self._totals.straggler_s):
            seconds[rank] = seconds.get(rank, 0.0) + waited_s

    def note(self, rank: int, waited_s: float, now: float) -> None:
        """Record that a chunk is complete, and that `rank` was the last to push it."""
        chunks, since = self._waits_for.get(rank, (0, now))
        if chunks > 1:
            self._waits_for[rank] = chunks - 1, since
        elif chunks:
            self._count(rank, now - since)
            del self._waits_for[rank]
        self._totals.chunk_waits.add(waited_s)
        self._chunks[rank] = self._chunks.get(rank, 0) + 1
        self._seconds[rank] = self._seconds.get(rank, 0.0) + waited_s
        self._latest.append(waited_s)

    def last(self) -> tuple[LastRank, ...]:
        """Return how often each rank was the last, in rank order."""
        return tuple(LastRank(rank, self._chunks[rank], self._seconds[rank]) for rank in sorted(self._chunks))

    def times(self) -> WaitTimes:
        """Return percentiles of the latest chunks, by nearest rank; zeros before the first."""
        if not self._latest:
            return WaitTimes()
        times = sorted(self._latest)
        p50_s, p90_s, p99_s = (times[(len(times) - 1) * percent // 100] for percent in (50, 90, 99))
        return WaitTimes(p50_s, p90_s, p99_s, times[-1])

    def may_tell(self, now: float) -> bool:
        """Return whether NEWS_S have passed since the last report to the ranks."""
        return now >= self._news_due

    def news(
        self, waiting: Waiting | None, oldest: Collective | None, now: float
    ) -> tuple[Waiting | None, str]:
        """Return the report of missing ranks for the others, and the warning for the operator.

        They are None and "" if there is nothing to report.

        Args:
            waiting: the missing ranks; None if there are none, or if they were just reported (`may_tell`).
            oldest: the collective of the oldest waiting chunk.
            now: time in seconds.
        """
        if waiting is None:
            return None, ""
        self._news_due = now + NEWS_S
        what = waiting.seq, waiting.epoch
        if waiting.waited_s < WARN_S or what == self._warned:
            return waiting, ""
        self._warned = what
        name = f"epoch {waiting.epoch}" if waiting.epoch else f"collective {waiting.seq} ({oldest})"
        return waiting, f"rank={waiting.numbers} {name} has waited {waiting.waited_s:.0f} s for {waiting}"
