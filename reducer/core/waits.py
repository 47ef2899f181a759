"""Who keeps others waiting at this reducer: which rank was last, and how long a chunk had waited then."""

from __future__ import annotations

from collections import deque

from reduction.model import LastRank, WaitTimes

#: Chunks that the percentiles are about.
LATEST = 1024


class Waits:
    """Of one job. All times in seconds, from a chunk's first push to its last."""

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._latest: deque[float] = deque(maxlen=LATEST)

    def note(self, rank: int, waited_s: float) -> None:
        """A chunk is complete: `rank` was the last to push it."""
        self._chunks[rank] = self._chunks.get(rank, 0) + 1
        self._seconds[rank] = self._seconds.get(rank, 0.0) + waited_s
        self._latest.append(waited_s)

    def last(self) -> tuple[LastRank, ...]:
        """Return what was noted, by rank, ascending."""
        return tuple(LastRank(rank, self._chunks[rank], self._seconds[rank]) for rank in sorted(self._chunks))

    def times(self) -> WaitTimes:
        """Return percentiles over the latest chunks, by nearest rank; zeros before the first."""
        if not self._latest:
            return WaitTimes()
        times = sorted(self._latest)
        p50_s, p90_s, p99_s = (times[(len(times) - 1) * percent // 100] for percent in (50, 90, 99))
        return WaitTimes(p50_s, p90_s, p99_s, times[-1])
