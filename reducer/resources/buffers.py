"""Memory for contributions, accumulators and results, used again from chunk to chunk.

A `Lease` goes back to its pool by itself when nobody refers to it or to a view of it any more: a
result is free once the last of n connections has sent it, whichever that is. What may be in use at
once is bounded by the credit, and was reserved at Join (`core/jobs.py`). What is kept for later,
`reduction.process.reuse` says: together with what is in use no more than was in use at once lately,
and EXTRA_BYTES_MAX for sizes that take turns.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reduction.process.reuse import Shelf

Buffer = NDArray[np.uint8]

#: What collectives of other sizes, which take turns, may keep beyond the most that was in use at
#: once.
EXTRA_BYTES_MAX = 64 << 20


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes on loan. Pass it on as memoryviews, which keep it: a numpy view would only keep what lies under it."""

    #: Where to return it to; only the array that `take` returned has one, its views have not.
    returned: deque[Buffer] | None = None

    def __del__(self) -> None:
        if self.returned is not None and self.base is not None:
            self.returned.append(self.base)


class BufferPool:
    """Byte buffers by exact size. One thread, but leases may end on any."""

    def __init__(self, extra_bytes_max: int = EXTRA_BYTES_MAX) -> None:
        self._shelf: Shelf[Buffer] = Shelf(extra_bytes_max)
        #: What has come back since the last take. A lease can end within any line of this file,
        #: when garbage is collected: so all that it does is this append, which nothing can come
        #: between.
        self._returned: deque[Buffer] = deque()

    @property
    def kept_bytes(self) -> int:
        """What is kept for later."""
        self._sort_in()
        return self._shelf.free_bytes

    def take(self, nbytes: int) -> memoryview:
        """Return writable bytes with undefined content; they come back when nobody refers to them."""
        self._sort_in()
        buffer = self._shelf.take(nbytes)
        lease = (np.empty(nbytes, np.uint8) if buffer is None else buffer).view(Lease)
        lease.returned = self._returned
        return lease.data

    def clear(self) -> None:
        """Keep nothing for later; what is in use comes back all the same."""
        self._sort_in()
        self._shelf.clear()

    def _sort_in(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._shelf.give(buffer.nbytes, buffer)


def is_leased(payload: memoryview) -> bool:
    """Whether the bytes are a pool's, and so may become an accumulator."""
    return isinstance(payload.obj, Lease)
