"""Shortens the list of faults of a run that went wrong (delta debugging)."""

from __future__ import annotations

import time
from collections.abc import Callable

from simulation.faults import Fault
from simulation.world import Outcome, simulate

#: Seconds during which runs are started: a failing test must report before pytest-timeout ends it.
LIMIT_S = 40.0


def shortest(outcome: Outcome, simulate: Callable[..., Outcome] = simulate) -> list[Fault]:
    """Return a minimal list of faults that still makes a run fail, or the shortest found within LIMIT_S."""
    faults, size = list(outcome.faults), max(1, len(outcome.faults) // 2)
    end = time.monotonic() + LIMIT_S
    while True:
        start, is_shorter = 0, False
        while start < len(faults) and time.monotonic() < end:
            rest = faults[:start] + faults[start + size :]
            if simulate(outcome.seed, rest).violations:
                faults, is_shorter = rest, True
            else:
                start += size
        if time.monotonic() >= end or (size == 1 and not is_shorter):
            return faults
        size = max(1, size // 2)
