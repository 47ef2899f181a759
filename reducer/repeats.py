"""Keeps a log readable: what repeats is said once per REPEAT_S, and after that how often it came again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: How long the same is not said again, in seconds.
REPEAT_S = 30.0
#: How many different things are remembered; the oldest makes room.
KEYS_MAX = 1024


@dataclass(slots=True)
class _Said:
    at: float
    left_out: int = 0


class Repeats:
    """Of texts that are their own keys; `summarize` hears of those that were left out, and how often."""

    def __init__(self, summarize: Callable[[str, int], None]) -> None:
        self._summarize = summarize
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def admits(self, key: str, now: float) -> bool:
        """Return whether to say it; otherwise it is counted."""
        self.expire(now)
        if (said := self._said.get(key)) is not None:
            said.left_out += 1
            return False
        if len(self._said) >= KEYS_MAX:
            self._drop_oldest()
        self._said[key] = _Said(now)
        return True

    def expire(self, now: float) -> None:
        """Sum up what was said REPEAT_S ago; to be called now and then."""
        while self._said and now - next(iter(self._said.values())).at >= REPEAT_S:
            self._drop_oldest()

    def close(self) -> None:
        """Sum up everything."""
        while self._said:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, said = self._said.popitem(last=False)
        if said.left_out:
            self._summarize(key, said.left_out)
