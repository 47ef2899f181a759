"""Which reducer is struck when: drawn from one seed, so that the same seed strikes the same ones again."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: A pause between two strikes is the mean pause times a number of this range, drawn evenly.
JITTER = (0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Strike:
    """One signal to one reducer."""

    #: Seconds since the schedule began in which at least one reducer served. So a kill of the only one never waits
    #: for it to be back: it would hit in the first moment of its new life, again and again.
    at_s: float
    #: Index of the reducer. If that one is down at the moment, the next one that serves is struck in its place.
    reducer: int


def schedule(seed: int, strikes: int, every_s: float, reducers: int) -> list[Strike]:
    """Return that many strikes, in order of time."""
    draw = random.Random(seed)
    at_s = 0.0
    planned = []
    for _ in range(strikes):
        at_s += every_s * draw.uniform(*JITTER)
        planned.append(Strike(at_s, draw.randrange(reducers)))
    return planned
