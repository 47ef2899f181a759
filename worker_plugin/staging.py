"""A collective's private memory, and the copies between it and the user's tensor.

In: a tensor becomes a contribution, which stays as it is until every rank holds the result. From the CPU that
happens chunk by chunk, when a chunk is pushed (encoding.py): it is hidden behind the network, and sent while it is in
the cache. From a GPU it happens as a whole, on a thread of its own. Out, on that thread: a whole result goes into
the tensor and the future completes. Failures pass through the same queue, so that once a user sees an error
nothing is written to a tensor any more: late data cannot reach a later step.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from reduction.errors import ClosedError
from reduction.model import Collective

from worker_plugin.bridge import Future, fail
from worker_plugin.encoding import Encoding

log = logging.getLogger(__name__)

CLOSED = "the state was closed; make a new one"
#: Free buffers are kept up to the most that was in use at once, seen over this many takes.
PEAK_TAKES = 256


_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class Work:
    """One collective on its way."""

    seq: int
    collective: Collective
    tensor: torch.Tensor
    encoding: Encoding
    future: Future
    #: Recorded on the stream that wrote the tensor; None on the CPU.
    ready: torch.cuda.Event | None
    #: None until the tensor is in it, or is encoded there by `payload`.
    contribution: torch.Tensor | None = None
    result: torch.Tensor | None = None
    #: The bytes of both; made once, because Tensor.numpy() takes longer than all else about a chunk.
    contribution_bytes: memoryview = _NOTHING
    result_bytes: memoryview = _NOTHING

    def own(self, contribution: torch.Tensor) -> None:
        """Take private memory; from here on chunks can be pushed."""
        self.contribution_bytes = _bytes_of(contribution)
        self.contribution = contribution

    def payload(self, start: int, stop: int) -> memoryview:
        """Return a span of the contribution, to be pushed."""
        begin, end = self.encoding.where(start, stop)
        payload = self.contribution_bytes[begin:end]
        self.encoding.encode(start, stop, payload)
        return payload


class ArenaPool:
    """Host buffers by exact size. Any thread.

    Keeps no more free memory than was in use at once lately: sizes change after DDP's first step, and a user
    may come with a new one each time.
    """

    def __init__(self) -> None:
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
            for buffer in self._free:
                if buffer.numel() == nbytes:
                    self._drop(buffer)
                    return buffer
        return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back; the caller must not use it any more."""
        with self._lock:
            self._used_bytes -= buffer.numel()
            self._free.append(buffer)
            self._free_bytes += buffer.numel()
            limit = max(self._peak_bytes, self._next_peak_bytes) - self._used_bytes
            while self._free and self._free_bytes > limit:
                self._drop(self._free[0])

    def _drop(self, buffer: torch.Tensor) -> None:
        index = next(index for index, free in enumerate(self._free) if free is buffer)
        del self._free[index]
        self._free_bytes -= buffer.numel()


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

    def begin(self, work: Work) -> None:
        """Let pushes encode the tensor, which is on the CPU. Loop thread."""
        work.encoding.open()
        work.own(self.pool.take(work.encoding.contribution_bytes))

    def deliver(self, work: Work) -> None:
        """Copy the result to the tensor and complete the future."""
        work.encoding.close()  # there is a result, so all was pushed
        self._queue.put(lambda: self._deliver(work))

    def fail(self, work: Work, error: Exception) -> None:
        """Complete the future with an error; the tensor is not touched any more."""
        self._queue.put(lambda: None if work.future.done() else fail(work.future, error))

    def finish(self, last: Callable[[], None]) -> None:
        """Do what was asked for so far, then `last`, and end."""
        self._queue.put(last)
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end; not on this thread itself, where callbacks of futures run."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                step()
            except Exception:  # a callback of the user's, run by set_result, must not end this thread
                log.exception("a copy or a callback of a future failed")
            del step  # it may hold a collective's memory until the next one
        # Whoever is called back holds us: a cycle that would keep all memory until garbage is collected.
        self.pool = ArenaPool()
        self._on_staged = fail_work

    def _stage(self, work: Work) -> None:
        try:
            if work.ready is not None:
                work.ready.synchronize()
            contribution = self.pool.take(work.encoding.contribution_bytes)
            work.encoding.stage(contribution)
            work.own(contribution)
        finally:
            self._on_staged(work)

    def _deliver(self, work: Work) -> None:
        assert work.result is not None
        try:
            if work.tensor.is_cuda:
                with torch.cuda.device(work.tensor.device):
                    work.encoding.deliver(work.result)
                    torch.cuda.current_stream().synchronize()
                    work.future.set_result(work.tensor)
            else:
                with torch.inference_mode(work.tensor.is_inference()):
                    work.encoding.deliver(work.result)
                work.future.set_result(work.tensor)
        except Exception as error:
            if not work.future.done():
                fail(work.future, error)
            raise
        finally:
            self.pool.give(work.result)
            work.result = None
            work.result_bytes = _NOTHING


def fail_work(work: Work) -> None:
    """Refuse what comes after the end."""
    fail(work.future, ClosedError(CLOSED))


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    return buffer.numpy().data
