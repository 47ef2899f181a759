"""Long runs go in slices: the parent says how many units come next, so all ranks agree when to stop."""

from __future__ import annotations

#: Most by which a slice may be longer than the one before, so that one fast slice makes no endless next one.
LONGER_MAX = 2.0


def following(count: int, seconds: float, wanted_s: float) -> int:
    """Return how many units make a slice of `wanted_s` after one of `count` took `seconds`."""
    return max(1, int(count * min(LONGER_MAX, wanted_s / seconds)))
