"""Memory for accumulators and results, reused from chunk to chunk.

What may be in use at once is bounded by the credit, and was reserved at Join (`core/table.py`); this file
only bounds what is kept for later.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]

#: A chunk in flight per size is common, a few dozen the most that a steady stream comes back for.
KEPT_BYTES_MAX = 64 << 20


class BufferPool:
    """Byte buffers by exact size. One thread."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.kept_bytes_max = kept_bytes_max
        self.kept_bytes = 0
        self._free: dict[int, list[Buffer]] = defaultdict(list)

    def take(self, nbytes: int) -> Buffer:
        """Return a buffer with undefined content."""
        free = self._free[nbytes]
        if not free:
            return np.empty(nbytes, np.uint8)
        self.kept_bytes -= nbytes
        return free.pop()

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back; the caller must not use it any more."""
        if buffer.nbytes > self.kept_bytes_max:
            return
        if self.kept_bytes + buffer.nbytes > self.kept_bytes_max:
            # Sizes that nobody asks for any more must not fill the pool for ever.
            self._free.clear()
            self.kept_bytes = 0
        self._free[buffer.nbytes].append(buffer)
        self.kept_bytes += buffer.nbytes
