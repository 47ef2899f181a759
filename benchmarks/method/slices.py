"""Slices of long runs. The parent sets the number of steps of each slice, so all ranks agree when to stop."""

from __future__ import annotations

#: A slice has at most this many times the steps of the previous one, so that a slice after a fast one is
#: not too long.
LONGER_MAX = 2.0


def following(count: int, seconds: float, wanted_s: float) -> int:
    """Return how many steps take `wanted_s`, after `count` steps took `seconds`."""
    return max(1, int(count * min(LONGER_MAX, wanted_s / seconds)))
