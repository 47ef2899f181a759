"""Progress of a run: show every row as soon as it is known, with the time left, and keep rows if the run is ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.lab.cluster import Shape
from benchmarks.lab.ending import ending_well

#: The weight of a comparison whose bytes take no time on a link, as on loopback. It is about a quarter of the weight
#: if the bytes take a second.
_LEAST_WEIGHT = 0.3


def _show(line: str) -> None:
    print(line, flush=True)


class Progress:
    """The parts of a run, one after the other.

    Args:
        weights: duration of each part, in any unit.
        say: shows a line.
        clock: returns seconds.
    """

    def __init__(
        self,
        weights: Sequence[float],
        say: Callable[[str], None] = _show,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._say, self._clock = weights, say, clock
        self._done = 0
        self._began = clock()

    def done(self, *lines: str) -> None:
        """Show the lines of the part that has just been measured; nothing if it has none."""
        self._done += 1
        left = self._left()
        for line in lines:
            self._say(f"[{self._done}/{len(self._weights)}, {left}] {line}")

    def _left(self) -> str:
        passed, rest = sum(self._weights[: self._done]), sum(self._weights[self._done :])
        seconds = (self._clock() - self._began) * rest / passed
        if not rest:
            return "done"
        return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"


def weight(shape: Shape, size_bytes: int) -> float:
    """Return the relative duration of a comparison at equal turns, which is mostly its bytes' time on a link."""
    return _LEAST_WEIGHT + (0.0 if shape.link is None else size_bytes * 8e-6 / shape.link.rate_mbit)


@contextmanager
def kept(name: str, keep: Callable[[], None]) -> Iterator[None]:
    """Call `keep` at the end of the body, even if it failed or was interrupted, then end as `ending_well` does."""
    with ending_well(name):
        try:
            yield
        finally:
            keep()
