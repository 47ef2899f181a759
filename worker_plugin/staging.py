"""The copies between the user's tensors and the private memory of a collective, on a thread of their own.

In: a tensor becomes a contribution, which stays as it is until every rank holds the result. Out: a whole
result goes into the tensor and the future completes. One queue for both and for failures, so that once a
user sees an error nothing is written to a tensor any more: late data cannot reach a later step.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from reduction.model import Collective

from worker_plugin.bridge import Future, fail

log = logging.getLogger(__name__)

#: A buffer that was not taken again within this many takes is freed: bucket sizes change after step 1.
KEPT_TAKES = 1024


@dataclass(slots=True, eq=False)
class Work:
    """One collective on its way."""

    seq: int
    collective: Collective
    tensor: torch.Tensor
    future: Future
    #: Recorded on the stream that wrote the tensor; None on the CPU.
    ready: torch.cuda.Event | None
    contribution: torch.Tensor | None = None
    result: torch.Tensor | None = None


class ArenaPool:
    """Host buffers by exact size. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[tuple[int, torch.Tensor]]] = {}
        self._takes = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """Return a one-dimensional uint8 tensor with undefined content."""
        with self._lock:
            self._takes += 1
            self._evict()
            free = self._free.get(nbytes)
            if free:
                return free.pop()[1]
        return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back; the caller must not use it any more."""
        with self._lock:
            self._free.setdefault(buffer.numel(), []).append((self._takes, buffer))

    def _evict(self) -> None:
        for size, free in list(self._free.items()):
            while free and free[0][0] < self._takes - KEPT_TAKES:
                free.pop(0)
            if not free:
                del self._free[size]


class Staging:
    """The copying thread. Its methods return at once; the callbacks run on it."""

    def __init__(self, pool: ArenaPool, on_staged: Callable[[Work], None]) -> None:
        self.pool = pool
        self._on_staged = on_staged
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reduction-staging", daemon=True)
        self._thread.start()

    def stage(self, work: Work) -> None:
        """Copy the tensor to private memory, then call `on_staged`."""
        self._queue.put(lambda: self._stage(work))

    def deliver(self, work: Work) -> None:
        """Copy the result to the tensor and complete the future."""
        self._queue.put(lambda: self._deliver(work))

    def fail(self, work: Work, error: Exception) -> None:
        """Complete the future with an error; the tensor is not touched any more."""
        self._queue.put(lambda: fail(work.future, error))

    def stop(self, timeout_s: float) -> None:
        """Finish what was asked for, and end."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                step()
            except Exception:  # a callback of the user's, run by set_result, must not end this thread
                log.exception("a copy or a callback of a future failed")

    def _stage(self, work: Work) -> None:
        try:
            if work.ready is not None:
                work.ready.synchronize()
            contribution = self.pool.take(work.tensor.nbytes)
            _typed(contribution, work.tensor).copy_(work.tensor)
            work.contribution = contribution
        finally:
            self._on_staged(work)

    def _deliver(self, work: Work) -> None:
        assert work.result is not None
        try:
            if work.tensor.is_cuda:
                with torch.cuda.device(work.tensor.device):
                    work.tensor.copy_(_typed(work.result, work.tensor))
                    torch.cuda.current_stream().synchronize()
                    work.future.set_result(work.tensor)
            else:
                work.tensor.copy_(_typed(work.result, work.tensor))
                work.future.set_result(work.tensor)
        except Exception as error:
            if not work.future.done():
                fail(work.future, error)
            raise
        finally:
            self.pool.give(work.result)
            work.result = None


def _typed(buffer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return buffer.view(like.dtype).view(like.shape)
