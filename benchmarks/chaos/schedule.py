"""The schedule of strikes: which reducer gets a signal when. The same seed gives the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: The pause between two strikes is the mean pause times a random number of this range.
JITTER = (0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Strike:
    """One signal to one reducer."""

    #: Seconds since the schedule began, without those in which no reducer served. Otherwise strikes
    #: at an only reducer would pile up while it is down, and each would hit it at the moment when
    #: it serves again.
    at_s: float
    #: Index of the reducer. If it is down at that moment, the next one that serves gets the signal.
    reducer: int


def schedule(seed: int, strikes: int, every_s: float, reducers: int) -> list[Strike]:
    """Return the strikes in the order of their times."""
    draw = random.Random(seed)
    at_s = 0.0
    planned = []
    for _ in range(strikes):
        at_s += every_s * draw.uniform(*JITTER)
        planned.append(Strike(at_s, draw.randrange(reducers)))
    return planned
