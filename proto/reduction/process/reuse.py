"""Rules shared by the memory pools of both sides for which free buffers to keep.

Buffers are reused for requests of exactly their size. A repeating pattern of sizes should allocate
nothing, and sizes that never recur must not pile up. Time is counted in takes.

1. Buffers in use and free buffers together have no more bytes than the recent peak in use. If they
   have more, the free buffer that was unused for longest is dropped before a new one is allocated.
   So the buffers of DDP's first step, which has the whole model in one bucket, make room for those of
   the second step, and a user who needs a new size each time leaves nothing behind.
2. Rule 1 alone would fail if large and small collectives alternate. A request that exceeds the peak by
   4 bytes would drop a buffer of 96 MiB in each round. So if a size has to be allocated although one
   of its buffers was dropped recently, it is taken as part of a pattern, and its buffers stay
   regardless of rule 1. A buffer is allocated only while all others of its size are in use, so each
   size has as many buffers as the pattern uses at the same time: at most 2 G for collectives of G
   bytes. A buffer that was not used for PATTERN_TAKES takes is dropped.
3. Sizes may also recur by chance, as lengths of strings do, and all of them together could be far more
   than is ever in use. So while all buffers have more than PATTERN_TIMES the peak, "recently" in rule 2
   means the last PEAK_TAKES takes instead of the last PATTERN_TAKES. A pattern that is shorter than
   PEAK_TAKES has no limit.
"""

from __future__ import annotations

from typing import Generic, TypeVar

#: The peak of bytes in use is remembered for this many takes, or up to twice as many.
PEAK_TAKES = 256
#: A pattern of sizes may take this many takes until it repeats.
PATTERN_TAKES = 4096
#: A pattern that is longer than PEAK_TAKES may have this many times the peak of bytes in use.
PATTERN_TIMES = 8

B = TypeVar("B")


class _Peak:
    """The highest recent value, which is the highest since the turn before the last one."""

    def __init__(self, value: int = 0) -> None:
        self.since_turn = value
        self._before = 0

    @property
    def value(self) -> int:
        return max(self.since_turn, self._before)

    def turn(self, value: int) -> None:
        self._before, self.since_turn = self.since_turn, value


class Shelf(Generic[B]):
    """The free buffers of a pool, and the number of bytes in use. Use it from one thread at a time.

    Args:
        extra_bytes_max: maximum bytes that rule 2 may keep beyond rule 1; None for no limit.
    """

    def __init__(self, extra_bytes_max: int | None = None) -> None:
        self.used_bytes = 0
        self.free_bytes = 0
        self._extra_bytes_max = extra_bytes_max
        self._takes = 0
        #: Free buffers of each size and the takes at which they were returned. The buffer that was unused
        #: for longest comes first.
        self._free: dict[int, list[tuple[int, B]]] = {}
        #: Bytes of the free buffers that rule 2 does not protect.
        self._loose_bytes = 0
        #: Take at which rule 1 dropped a buffer of each size, oldest first.
        self._gone: dict[int, int] = {}
        #: Take that last requested each size that rule 2 protects.
        self._recurring: dict[int, int] = {}
        self._peak = _Peak()
        self._long_peak = _Peak()

    def take(self, nbytes: int) -> B | None:
        """Return a free buffer of this size, or None if the caller must allocate one.

        In both cases it counts as in use.
        """
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
        """Accept a buffer that is no longer used."""
        self.used_bytes -= nbytes
        self.free_bytes += nbytes
        if nbytes not in self._recurring:
            self._loose_bytes += nbytes
        self._free.setdefault(nbytes, []).append((self._takes, buffer))
        self._trim()

    def cancel(self, nbytes: int) -> None:
        """Stop counting a buffer as in use, because it could not be allocated."""
        self.used_bytes -= nbytes

    def clear(self) -> None:
        """Drop all free buffers, and forget which sizes there were."""
        self._free.clear()
        self._gone.clear()
        self._recurring.clear()
        self.free_bytes = self._loose_bytes = 0
        self._peak, self._long_peak = _Peak(self.used_bytes), _Peak(self.used_bytes)

    @property
    def _since(self) -> int:
        """The take at which "recently" begins in rule 2."""
        is_too_much = self.used_bytes + self.free_bytes > PATTERN_TIMES * self._long_peak.value
        return max(0, self._takes - (PEAK_TAKES if is_too_much else PATTERN_TAKES))

    def _turn(self) -> None:
        self._peak.turn(self.used_bytes)
        if self._takes % PATTERN_TAKES == 0:
            self._long_peak.turn(self.used_bytes)
        self._forget()

    def _forget(self) -> None:
        """Drop buffers and sizes that were not used recently."""
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
                (nbytes for nbytes in sizes if self._free[nbytes]),
                key=lambda nbytes: self._free[nbytes][0][0],
            )
            self._drop(oldest)
            self._gone.pop(oldest, None)
            self._gone[oldest] = self._takes

    def _drop(self, nbytes: int) -> None:
        self._free[nbytes].pop(0)
        self.free_bytes -= nbytes
        if nbytes not in self._recurring:
            self._loose_bytes -= nbytes
