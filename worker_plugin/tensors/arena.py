"""Host memory for collectives in flight, reused from step to step. `reduction.process.reuse` decides what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from reduction.process.reuse import Shelf
from reduction.transports.shared import OwnMemory


def _pageable(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


class ArenaPool:
    """Host buffers that are reused for tensors of exactly the same size. For any thread.

    Args:
        allocate: returns a buffer of at least this many bytes.
        suits: whether a previously allocated buffer may be reused.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor] = _pageable,
        suits: Callable[[torch.Tensor], bool] = lambda _: True,
    ) -> None:
        self._allocate = allocate
        self._suits = suits
        self._lock = threading.Lock()
        self._shelf: Shelf[torch.Tensor] = Shelf()

    @classmethod
    def of(cls, memory: OwnMemory) -> ArenaPool:
        """Return a pool whose buffers can be shared with other processes of this host, once one asks for that."""

        def allocate(nbytes: int) -> torch.Tensor:
            # torch gives an empty array numpy strides that it cannot view as another dtype.
            is_shared = memory.is_wanted and nbytes > 0
            return torch.from_numpy(memory.allocate(nbytes)) if is_shared else _pageable(nbytes)

        return cls(allocate, lambda buffer: memory.suits(buffer.data_ptr()))

    @property
    def used_bytes(self) -> int:
        """Bytes of the buffers in use."""
        return self._shelf.used_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the buffers kept for later."""
        return self._shelf.free_bytes

    def take(self, nbytes: int) -> torch.Tensor:
        """Return a one-dimensional uint8 tensor with undefined content."""
        with self._lock:
            buffer = self._shelf.take(nbytes)
        if buffer is None or not self._suits(buffer):
            try:
                buffer = self._allocate(nbytes)
            except BaseException:
                with self._lock:
                    self._shelf.cancel(nbytes)
                raise
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back. The caller must no longer use it."""
        with self._lock:
            self._shelf.give(buffer.numel(), buffer)
