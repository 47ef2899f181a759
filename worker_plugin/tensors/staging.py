"""A collective's private memory, and the copies between it and the user's tensor.

In: a tensor becomes a contribution, which stays as it is until every rank holds the result. From the CPU that
happens chunk by chunk, when a chunk is pushed (encoding.py): it is hidden behind the network, and sent while it is in
the cache. From a GPU it comes in segments (gpu.py). Out, on a thread of its own: a whole result goes into the tensor
and the future completes. Failures pass through the same queue, so that once a user sees an error nothing is written
to a tensor any more: late data cannot reach a later step.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from reduction import formats
from reduction.model import Collective

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.bridge import Future, fail
from worker_plugin.tensors.encoding import Encoding, bytes_of
from worker_plugin.tensors.gpu import Arrival, Downloads, Event, Gpu

log = logging.getLogger(__name__)

CLOSED = "the state was closed; make a new one"

_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class Work:
    """One collective on its way."""

    seq: int
    collective: Collective
    tensor: torch.Tensor
    encoding: Encoding
    future: Future
    #: After which the tensor may be read; None on the CPU.
    ready: Event | None
    #: None until the tensor begins to arrive in it, or is encoded there by `payload`.
    contribution: torch.Tensor | None = None
    result: torch.Tensor | None = None
    #: Of a tensor on a GPU: which one, what of it is there, and its elements if they are encoded on the CPU.
    gpu: Gpu | None = None
    arrival: Arrival | None = None
    source: torch.Tensor | None = None
    #: The bytes of both; made once, because Tensor.numpy() takes longer than all else about a chunk.
    contribution_bytes: memoryview = _NOTHING
    result_bytes: memoryview = _NOTHING

    def own(self, contribution: torch.Tensor) -> None:
        """Take private memory; from here on chunks can be pushed."""
        self.contribution_bytes = bytes_of(contribution)
        self.contribution = contribution

    def take_result(self, result: torch.Tensor) -> None:
        """Take memory for the result."""
        self.result = result
        self.result_bytes = bytes_of(result)

    def payload(self, start: int, stop: int) -> memoryview:
        """Return a span of the contribution, to be pushed.

        Raises:
            RuntimeError: the GPU has failed.
        """
        if self.arrival is not None:
            self.arrival.wait(self.encoding.elements(stop))
        begin, end = self.encoding.where(start, stop)
        payload = self.contribution_bytes[begin:end]
        self.encoding.encode(start, stop, payload)
        return payload

    def destination(self, start: int, stop: int) -> memoryview | None:
        """Return the memory for a chunk's result; None if the size of that is not known before it comes."""
        dtype = self.collective.dtype
        if not formats.is_placed(dtype):
            return None
        return self.result_bytes[formats.result_bytes(dtype, start) : formats.result_bytes(dtype, stop)]

    def store(self, start: int, stop: int, payload: memoryview) -> None:
        """Put a chunk's result into the result memory, unless it was received there.

        Raises:
            MalformedFrame: no reducer of ours sends this.
        """
        if payload.obj is not self.result_bytes.obj:
            self.encoding.store(start, stop, payload, np.frombuffer(self.result_bytes, np.uint8))

    def write(self) -> None:
        """Write the result into the tensor."""
        assert self.result is not None
        with torch.inference_mode(self.tensor.is_inference()):
            self.encoding.deliver(self.result, self.source)


class Staging:
    """The copying threads. Its methods return at once; the callbacks run on them."""

    def __init__(self, pool: ArenaPool, on_arriving: Callable[[Work], None]) -> None:
        self._pool = pool
        self._on_arriving = on_arriving
        #: From the first collective on a GPU on, all collectives take the way over its thread.
        self._downloads: Downloads | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reduction-staging", daemon=True)
        self._thread.start()

    def download(self, work: Work) -> bool:
        """Have the tensor copied from its GPU, then call `on_arriving`; False: it is on the CPU, and so were all.

        For one thread at a time.
        """
        if self._downloads is None:
            if work.ready is None:
                return False
            self._downloads = Downloads(self._on_arriving)
        self._downloads.put(work)
        return True

    def begin(self, work: Work) -> None:
        """Let pushes encode the tensor, which is on the CPU. Loop thread."""
        work.encoding.open()
        work.own(self._pool.take(work.encoding.contribution_bytes))

    def prepare_result(self, work: Work) -> None:
        """See to it that there is memory for the result. Loop thread."""
        if work.result is None:
            work.take_result(self._pool.take(work.encoding.result_bytes))

    def release(self, work: Work) -> None:
        """Take back the contribution: nobody needs it any more. Loop thread."""
        assert work.contribution is not None
        self._pool_of(work).give(work.contribution)

    def deliver(self, work: Work) -> None:
        """Copy the result to the tensor and complete the future."""
        work.encoding.close()  # there is a result, so all was pushed
        self._queue.put(lambda: self._deliver(work))

    def fail(self, work: Work, error: Exception) -> None:
        """Complete the future with an error; the tensor is not touched any more."""
        self._queue.put(lambda: None if work.future.done() else fail(work.future, error))

    def finish(self, last: Callable[[], None]) -> None:
        """Do what was asked for so far, then `last`, and end."""
        if self._downloads is not None:
            self._downloads.put(None)
        self._queue.put(last)
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end; not on these threads themselves, where callbacks of futures run."""
        threads = [self._thread] if self._downloads is None else [self._thread, self._downloads.thread]
        if threading.current_thread() in threads:
            return
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                step()
            except Exception:  # a callback of the user's, run by set_result, must not end this thread
                log.exception("a copy or a callback of a future failed")
            del step  # it may hold a collective's memory until the next one
        # Whoever is called back holds us: a cycle that would keep all memory until garbage is collected.
        self._pool = ArenaPool()
        del self._on_arriving

    def _pool_of(self, work: Work) -> ArenaPool:
        return self._pool if work.gpu is None else work.gpu.pool

    def _deliver(self, work: Work) -> None:
        def complete() -> None:
            work.future.set_result(work.tensor)

        try:
            if work.gpu is None:
                work.write()
                complete()
            else:
                work.gpu.deliver(work, complete)
        except Exception as error:
            if not work.future.done():
                fail(work.future, error)
            raise
        finally:
            for buffer in (work.result, work.source):
                if buffer is not None:
                    self._pool_of(work).give(buffer)
            work.result = work.source = None
            work.result_bytes = _NOTHING
