"""Memory for contributions, accumulators and results, reused from chunk to chunk.

A `Lease` returns to its pool when nothing refers to it or its views any longer, so a result is free as
soon as the last of n connections has sent it. The credit bounds the bytes in use, and they were reserved
at Join (`core/jobs.py`). `reduction.process.reuse` decides how many free bytes the pool keeps. Together
with the bytes in use they are at most the recent peak in use plus EXTRA_BYTES_MAX, which is for
alternating collectives of different sizes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reduction.process.reuse import Shelf
from reduction.transports.shared import OwnMemory, address_of

Buffer = NDArray[np.uint8]

#: Free bytes beyond the peak in use that the pool may keep for alternating collectives of different sizes.
EXTRA_BYTES_MAX = 64 << 20


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A buffer on loan. Pass it on as memoryviews, which keep the lease alive.

    A numpy view would only keep the underlying buffer alive."""

    #: The queue for returning the buffer. Only the array made by `take` has one; its views do not.
    returned: deque[tuple[int, Buffer | None]] | None = None
    #: Whether the buffer must not be reused.
    is_spoilt = False

    def __del__(self) -> None:
        if self.returned is not None and self.base is not None:
            self.returned.append((self.nbytes, None if self.is_spoilt else self.base))


class BufferPool:
    """A pool of buffers by exact size. One thread uses it, but leases may end on any thread."""

    def __init__(self, extra_bytes_max: int = EXTRA_BYTES_MAX) -> None:
        self._shelf: Shelf[Buffer] = Shelf(extra_bytes_max)
        #: Memory that workers on this host can read, once there are any.
        self.memory = OwnMemory()
        #: Buffers returned since the last `take`. The garbage collector may end a lease at any line of
        #: this file, so a lease only appends here, which is atomic.
        self._returned: deque[tuple[int, Buffer | None]] = deque()

    @property
    def kept_bytes(self) -> int:
        """Free bytes that the pool keeps."""
        self._sort_in()
        return self._shelf.free_bytes

    def take(self, nbytes: int) -> memoryview:
        """Return writable bytes of undefined content. They go back to the pool when nothing refers to them."""
        self._sort_in()
        buffer = self._shelf.take(nbytes)
        if buffer is None or not self.memory.suits(address_of(buffer.data)):
            try:
                buffer = self.memory.allocate(nbytes)
            except BaseException:
                self._shelf.cancel(nbytes)
                raise
        lease = buffer.view(Lease)
        lease.returned = self._returned
        return lease.data

    def spoil(self, payload: memoryview) -> None:
        """Prevent reuse of a payload's memory, because a worker may still read it at any time."""
        owner: Any = payload
        while owner is not None and not isinstance(owner, Lease):
            owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is not None:
            owner.is_spoilt = True

    def clear(self) -> None:
        """Drop all free buffers. Buffers in use are still returned later."""
        self._sort_in()
        self._shelf.clear()

    def _sort_in(self) -> None:
        while self._returned:
            nbytes, returned = self._returned.popleft()
            if returned is None:
                self._shelf.cancel(nbytes)
            else:
                self._shelf.give(nbytes, returned)


def is_leased(payload: memoryview) -> bool:
    """Return whether the bytes belong to a pool, so that they may become an accumulator."""
    return isinstance(payload.obj, Lease)
