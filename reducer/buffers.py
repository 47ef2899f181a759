"""Memory for contributions, accumulators and results, reused from chunk to chunk.

A `Lease` goes back to its pool by itself when nobody refers to it or to a view of it any more: a result is
free once the last of n connections has sent it, whichever that is. What may be in use at once is bounded by
the credit, and was reserved at Join (`core/table.py`); this file only bounds what is kept for later.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]

#: A chunk in flight per size is common, a few dozen the most that a steady stream comes back for.
KEPT_BYTES_MAX = 64 << 20


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes on loan. Pass it on as memoryviews, which keep it: a numpy view would only keep what lies under it."""

    #: Where to return it to; only the array that `take` returned has one, its views have not.
    pool: BufferPool | None = None

    def __del__(self) -> None:
        if self.pool is not None and self.base is not None:
            self.pool.give(self.base)


class BufferPool:
    """Byte buffers by exact size. One thread."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.kept_bytes_max = kept_bytes_max
        self.kept_bytes = 0
        self._free: dict[int, list[Buffer]] = defaultdict(list)

    def take(self, nbytes: int) -> memoryview:
        """Return writable bytes with undefined content; they come back when nobody refers to them."""
        free = self._free.get(nbytes)
        if free:
            self.kept_bytes -= nbytes
        lease = (free.pop() if free else np.empty(nbytes, np.uint8)).view(Lease)
        lease.pool = self
        return lease.data

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back; nobody may use it any more."""
        if buffer.nbytes > self.kept_bytes_max:
            return
        if self.kept_bytes + buffer.nbytes > self.kept_bytes_max:
            # Sizes that nobody asks for any more must not fill the pool for ever.
            self._free.clear()
            self.kept_bytes = 0
        self._free[buffer.nbytes].append(buffer)
        self.kept_bytes += buffer.nbytes


def is_leased(payload: memoryview) -> bool:
    """Whether the bytes are a pool's, and so may become an accumulator."""
    return isinstance(payload.obj, Lease)
