"""Sums of whole numbers over threads, in place of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from worker_plugin.tensors.futures import Future, fail


class FakeSums:
    """Sums what its members submit, in each member's order of submission.

    Args:
        count: number of members.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._submitted: list[list[tuple[torch.Tensor, Future]]] = []
        self._error: Exception | None = None

    def member(self) -> Callable[[torch.Tensor], Future]:
        """Return the submit function of a new member."""
        submitted = 0

        def submit(tensor: torch.Tensor) -> Future:
            nonlocal submitted
            future: Future = torch.futures.Future()
            with self._lock:
                if submitted == len(self._submitted):
                    self._submitted.append([])
                together = self._submitted[submitted]
                submitted += 1
                together.append((tensor, future))
                error = self._error
                is_complete = len(together) == self._count
            if error is not None:
                fail(future, error)
            elif is_complete:
                self._complete(together)
            return future

        return submit

    def break_off(self, error: Exception) -> None:
        """Fail everything that is incomplete, and everything submitted later."""
        with self._lock:
            self._error = error
            left = [one for together in self._submitted if len(together) < self._count for one in together]
        for _, future in left:
            if not future.done():
                fail(future, error)

    @staticmethod
    def _complete(together: list[tuple[torch.Tensor, Future]]) -> None:
        tensors = [tensor for tensor, _ in together]
        assert len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
        total = torch.stack(tensors).sum(0, dtype=tensors[0].dtype)
        for tensor, future in together:
            tensor.copy_(total)
            future.set_result(tensor)
