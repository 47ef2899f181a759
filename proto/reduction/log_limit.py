"""Limit the log lines that peers can cause, so that a log stays readable and its disk free whatever they do.

A line has a kind, which our code names, and a peer, as the kernel or our own configuration calls it. A peer chooses
neither, so it cannot cause more lines by renaming itself. For each kind and peer, BURST lines are written
immediately, and then one per REPEAT_S. Suppressed lines are counted, and the count is logged the same way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: After a burst, a kind of line is written once in this time for each peer, in seconds.
REPEAT_S = 30.0
#: Number of lines of one kind and peer in a burst.
BURST = 3
#: Pairs of kind and peer that are remembered. Further peers share one pair per kind.
KEYS_MAX = 1024
#: How often counts are checked, in seconds.
_LOOK_S = 1.0

_Key = tuple[logging.Logger, int, str, str]


@dataclass(slots=True)
class _Said:
    burst: int
    #: Time at which a whole burst is available again.
    free_at: float
    left_out: int = 0

    def takes(self, now: float) -> bool:
        """Return whether one more line may be written. If so, it counts as written."""
        if self.free_at - now > (self.burst - 1) * REPEAT_S:
            return False
        self.free_at = max(self.free_at, now) + REPEAT_S
        return True


class Repeats:
    """Writer of lines that peers can cause. Use it from any thread.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[_Key, _Said] = {}
        self._looked_at = clock()

    def log(
        self,
        logger: logging.Logger,
        level: int,
        kind: str,
        peer: str,
        text: str,
        *args: object,
        burst: int = BURST,
        error: BaseException | None = None,
    ) -> None:
        """Write a line, or count it.

        Args:
            logger: for the line and for the count.
            level: for the line and for the count.
            kind: of the line, in our words only.
            peer: as the kernel or our own configuration calls it; "" if it is unknown.
            text: has placeholders for `args`.
            args: may contain a peer's words.
            burst: number of lines of this kind in a burst.
            error: its traceback is added to the line.
        """
        self.expire()
        with self._lock:
            key = logger, level, kind, peer
            if key not in self._said and len(self._said) >= KEYS_MAX:
                key = logger, level, kind, "others"
            said = self._said.setdefault(key, _Said(burst, 0.0))
            if said.left_out or not said.takes(self._clock()):
                said.left_out += 1
                return
        logger.log(level, text, *args, exc_info=error, stacklevel=2)

    def expire(self) -> None:
        """Write the counts that are due. Call this regularly."""
        now = self._clock()
        if now - self._looked_at < _LOOK_S:
            return
        counts = []
        with self._lock:
            self._looked_at = now
            for key, said in list(self._said.items()):
                if said.left_out and said.takes(now):
                    counts.append((key, said.left_out))
                    said.left_out = 0
                elif said.free_at <= now:
                    del self._said[key]
        _sum_up(counts)

    def close(self) -> None:
        """Write all counts, and forget what was written."""
        with self._lock:
            counts = [(key, said.left_out) for key, said in self._said.items() if said.left_out]
            self._said.clear()
        _sum_up(counts)


def _sum_up(counts: Iterable[tuple[_Key, int]]) -> None:
    for (logger, level, kind, peer), times in counts:
        logger.log(level, "left out kind=%s peer=%s times=%d", kind, peer or "?", times)


#: The limiter of this process.
LINES = Repeats()
