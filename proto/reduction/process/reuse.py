"""Which free buffers are worth keeping; the rules that the memory pools of both sides share.

Buffers are found again by their exact size. A size that comes again should find one, so that a pattern of sizes that
repeats allocates nothing; sizes that never come again must not pile up. Time is counted in takes.

1. In use and free together are no more than was in use at once lately. Beyond that, the free buffer that was unused for
   longest goes, before a new one is allocated. So the buffers of DDP's first step, which has the whole model in one
   bucket, make room for those of the second, and a user who comes with a new size each time leaves nothing behind.
2. That alone would fail where large and small collectives take turns: 4 bytes more than ever were in use at once would
   cost the buffer of 96 MiB, in each round. So a size that has to be allocated although one of its buffers has gone
   lately is taken for a part of a pattern: its buffers stay, whatever rule 1 says. A buffer is only allocated while all
   others of its size are in use, so there are as many as the pattern has in use at once, of each size: for collectives
   of G bytes, 2 G at the most. What no take has used for PATTERN_TAKES takes goes.
3. Sizes may also come again by chance, as lengths of texts do, and all of them together could be far more than is ever
   in use. So while everything is more than PATTERN_TIMES as much as was in use at once, "lately" in rule 2 is the last
   PEAK_TAKES takes, and not the last PATTERN_TAKES. A pattern that is shorter than that may be as large as it likes.
"""

from __future__ import annotations

from typing import Generic, TypeVar

#: Over how many takes, to twice as many, the most that was in use at once is remembered.
PEAK_TAKES = 256
#: How many takes a pattern may be long.
PATTERN_TAKES = 4096
#: How many times as much as was in use at once a pattern may be, if it is longer than PEAK_TAKES.
PATTERN_TIMES = 8

B = TypeVar("B")


class _Peak:
    """The highest of the values lately: since the turn before the last one."""

    def __init__(self, value: int = 0) -> None:
        self.since_turn = value
        self._before = 0

    @property
    def value(self) -> int:
        return max(self.since_turn, self._before)

    def turn(self, value: int) -> None:
        self._before, self.since_turn = self.since_turn, value


class Shelf(Generic[B]):
    """The free buffers of a pool, and what is known of those in use. One thread at a time.

    Args:
        extra_bytes_max: the most that rule 2 may keep beyond rule 1; None, as much as the pattern needs.
    """

    def __init__(self, extra_bytes_max: int | None = None) -> None:
        self.used_bytes = 0
        self.free_bytes = 0
        self._extra_bytes_max = extra_bytes_max
        self._takes = 0
        #: By size: when it came back, and the buffer; the one that is unused for longest comes first.
        self._free: dict[int, list[tuple[int, B]]] = {}
        #: Of those, the bytes that rule 2 does not protect.
        self._loose_bytes = 0
        #: When a buffer of this size went by rule 1; oldest first.
        self._gone: dict[int, int] = {}
        #: Sizes that rule 2 protects, and when they were last asked for.
        self._recurring: dict[int, int] = {}
        self._peak = _Peak()
        self._long_peak = _Peak()

    def take(self, nbytes: int) -> B | None:
        """Return a free buffer of this size; None: one is to be allocated, and counts as in use already."""
        self._takes += 1
        self.used_bytes += nbytes
        if self.used_bytes > self._peak.since_turn:
            self._peak.since_turn = self.used_bytes
            self._long_peak.since_turn = max(self._long_peak.since_turn, self.used_bytes)
        if self._takes % PEAK_TAKES == 0:
            self._turn()
        if nbytes in self._recurring:
            self._recurring[nbytes] = self._takes
        if stack := self._free.get(nbytes):
            self.free_bytes -= nbytes
            if nbytes not in self._recurring:
                self._loose_bytes -= nbytes
            return stack.pop()[1]
        if self._gone.pop(nbytes, -1) >= self._since:
            self._recurring[nbytes] = self._takes
        self._forget()
        self._trim()
        return None

    def give(self, nbytes: int, buffer: B) -> None:
        """Take a buffer back."""
        self.used_bytes -= nbytes
        self.free_bytes += nbytes
        if nbytes not in self._recurring:
            self._loose_bytes += nbytes
        self._free.setdefault(nbytes, []).append((self._takes, buffer))
        self._trim()

    def cancel(self, nbytes: int) -> None:
        """Take note that a buffer could not be allocated."""
        self.used_bytes -= nbytes

    def clear(self) -> None:
        """Let go of all free buffers, and forget which sizes there were."""
        self._free.clear()
        self._gone.clear()
        self._recurring.clear()
        self.free_bytes = self._loose_bytes = 0
        self._peak, self._long_peak = _Peak(self.used_bytes), _Peak(self.used_bytes)

    @property
    def _since(self) -> int:
        """The take at which "lately" begins in rule 2."""
        is_too_much = self.used_bytes + self.free_bytes > PATTERN_TIMES * self._long_peak.value
        return max(0, self._takes - (PEAK_TAKES if is_too_much else PATTERN_TAKES))

    def _turn(self) -> None:
        self._peak.turn(self.used_bytes)
        if self._takes % PATTERN_TAKES == 0:
            self._long_peak.turn(self.used_bytes)
        self._forget()

    def _forget(self) -> None:
        """Let go of what was not used lately."""
        since = self._since
        for nbytes in list(self._free):
            while self._free[nbytes] and self._free[nbytes][0][0] < since:
                self._drop(nbytes)
            if not self._free[nbytes]:
                del self._free[nbytes]
        for nbytes in list(self._recurring):
            if self._recurring[nbytes] < since and nbytes not in self._free:
                del self._recurring[nbytes]
        while self._gone and self._gone[oldest := next(iter(self._gone))] < self._takes - PATTERN_TAKES:
            del self._gone[oldest]

    def _trim(self) -> None:
        """Apply rule 1, and the bound of rule 2."""
        while (excess := self.used_bytes + self.free_bytes - self._peak.value) > 0:
            if self._loose_bytes:
                sizes = [nbytes for nbytes in self._free if nbytes not in self._recurring]
            elif self._extra_bytes_max is not None and excess > self._extra_bytes_max and self.free_bytes:
                sizes = list(self._free)
            else:
                return
            oldest = min(
                (nbytes for nbytes in sizes if self._free[nbytes]), key=lambda one: self._free[one][0][0]
            )
            self._drop(oldest)
            self._gone.pop(oldest, None)
            self._gone[oldest] = self._takes

    def _drop(self, nbytes: int) -> None:
        self._free[nbytes].pop(0)
        self.free_bytes -= nbytes
        if nbytes not in self._recurring:
            self._loose_bytes -= nbytes
