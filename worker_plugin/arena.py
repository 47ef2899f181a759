"""Host memory for what is in flight, used again from step to step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

#: Free buffers are kept up to the most that was in use at once, seen over this many takes.
PEAK_TAKES = 256


def _pageable(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


class ArenaPool:
    """Host buffers by exact size. Any thread.

    Keeps no more free memory than was in use at once lately: sizes change after DDP's first step, and a user
    may come with a new one each time.

    Args:
        allocate: returns a buffer of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = _pageable) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: deque[torch.Tensor] = deque()  # oldest first
        self._free_bytes = 0
        self._used_bytes = 0
        self._takes = 0
        self._peak_bytes = self._next_peak_bytes = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """Return a one-dimensional uint8 tensor with undefined content."""
        with self._lock:
            self._takes += 1
            self._used_bytes += nbytes
            self._next_peak_bytes = max(self._next_peak_bytes, self._used_bytes)
            if self._takes % PEAK_TAKES == 0:
                self._peak_bytes, self._next_peak_bytes = self._next_peak_bytes, self._used_bytes
            for index, buffer in enumerate(self._free):
                if buffer.numel() == nbytes:
                    del self._free[index]
                    self._free_bytes -= nbytes
                    return buffer
        return self._allocate(nbytes)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back; the caller must not use it any more."""
        with self._lock:
            self._used_bytes -= buffer.numel()
            self._free.append(buffer)
            self._free_bytes += buffer.numel()
            limit = max(self._peak_bytes, self._next_peak_bytes) - self._used_bytes
            while self._free and self._free_bytes > limit:
                self._free_bytes -= self._free.popleft().numel()
