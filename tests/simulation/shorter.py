"""Shortens the list of faults of a run that went wrong (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable

from simulation.faults import Fault
from simulation.world import Outcome, simulate

#: So many runs may be made.
RUNS_MAX = 200


def shortest(outcome: Outcome, simulate: Callable[..., Outcome] = simulate) -> list[Fault]:
    """Return faults of a run without any of which nothing would be wrong, or as few as RUNS_MAX runs find."""
    faults, runs, size = list(outcome.faults), 0, max(1, len(outcome.faults) // 2)
    while True:
        start, is_shorter = 0, False
        while start < len(faults) and runs < RUNS_MAX:
            rest = faults[:start] + faults[start + size :]
            runs += 1
            if simulate(outcome.seed, rest).violations:
                faults, is_shorter = rest, True
            else:
                start += size
        if runs >= RUNS_MAX or (size == 1 and not is_shorter):
            return faults
        size = max(1, size // 2)
