"""Keeps a log readable: a line that repeats is written once in REPEAT_S, and then counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: A key is admitted once in this time, in seconds.
REPEAT_S = 30.0
#: At most this many keys are remembered. A new key takes the place of the oldest.
KEYS_MAX = 1024


@dataclass(slots=True)
class _Said:
    at: float
    left_out: int = 0


class Repeats:
    """Decides which lines to write, by key. `summarize` gets the keys that were left out."""

    def __init__(self, summarize: Callable[[str, int], None]) -> None:
        self._summarize = summarize
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def admits(self, key: str, now: float) -> bool:
        """Return whether to write a line with this key. If not, the line is counted."""
        self.expire(now)
        if (said := self._said.get(key)) is not None:
            said.left_out += 1
            return False
        if len(self._said) >= KEYS_MAX:
            self._drop_oldest()
        self._said[key] = _Said(now)
        return True

    def expire(self, now: float) -> None:
        """Sum up keys that were admitted REPEAT_S ago. The caller does this now and then."""
        while self._said and now - next(iter(self._said.values())).at >= REPEAT_S:
            self._drop_oldest()

    def close(self) -> None:
        """Sum up all keys."""
        while self._said:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, said = self._said.popitem(last=False)
        if said.left_out:
            self._summarize(key, said.left_out)
