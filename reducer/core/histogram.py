"""A histogram of durations that costs a quarter of a microsecond per value."""

from __future__ import annotations

from bisect import bisect_left

#: The upper bounds of the buckets, in seconds: 1 ms to 65.5 s, each twice the previous one. One more
#: bucket takes longer durations.
BOUNDS = tuple(0.001 * 2**power for power in range(17))


class Histogram:
    """Counts of durations by size. A duration of exactly a bound belongs to the bucket below it."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        #: Number of values in each bucket, in the order of BOUNDS, and beyond the last bound.
        self.counts = [0] * (len(BOUNDS) + 1)
        #: The sum of all values, in seconds.
        self.sum_s = 0.0

    def copy(self) -> Histogram:
        """Return a copy of the current values for another thread."""
        copy = Histogram()
        copy.counts, copy.sum_s = list(self.counts), self.sum_s
        return copy

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum_s += seconds
