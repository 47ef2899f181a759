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

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.downloads import Downloads
from worker_plugin.tensors.futures import fail
from worker_plugin.tensors.transfer import NOTHING, Transfer

log = logging.getLogger(__name__)

CLOSED = "the state was closed; make a new one"


class Staging:
    """The copying threads. Its methods return at once; the callbacks run on them."""

    def __init__(self, pool: ArenaPool, on_arriving: Callable[[Transfer], None]) -> None:
        self._pool = pool
        self._on_arriving = on_arriving
        #: From the first collective on a GPU on, all collectives take the way over its thread.
        self._downloads: Downloads | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reduction-staging", daemon=True)
        self._thread.start()

    def download(self, transfer: Transfer) -> bool:
        """Have the tensor copied from its GPU, then call `on_arriving`; False: it is on the CPU, and so were all.

        For one thread at a time.
        """
        if self._downloads is None:
            if transfer.ready is None:
                return False
            self._downloads = Downloads(self._on_arriving)
        self._downloads.put(transfer)
        return True

    def begin(self, transfer: Transfer) -> None:
        """Let pushes encode the tensor, which is on the CPU. Loop thread."""
        transfer.encoding.open()
        transfer.own(self._pool.take(transfer.encoding.contribution_bytes))

    def prepare_result(self, transfer: Transfer) -> None:
        """See to it that there is memory for the result. Loop thread."""
        if transfer.result is None:
            transfer.take_result(self._pool.take(transfer.encoding.result_bytes))

    def release(self, transfer: Transfer) -> None:
        """Take back the contribution: nobody needs it any more. Loop thread."""
        assert transfer.contribution is not None
        self._pool_of(transfer).give(transfer.contribution)

    def deliver(self, transfer: Transfer) -> None:
        """Copy the result to the tensor and complete the future."""
        transfer.encoding.close()  # there is a result, so all was pushed
        self._queue.put(lambda: self._deliver(transfer))

    def fail(self, transfer: Transfer, error: Exception) -> None:
        """Complete the future with an error; the tensor is not touched any more."""
        self._queue.put(lambda: None if transfer.future.done() else fail(transfer.future, error))

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

    def _pool_of(self, transfer: Transfer) -> ArenaPool:
        return self._pool if transfer.gpu is None else transfer.gpu.pool

    def _deliver(self, transfer: Transfer) -> None:
        def complete() -> None:
            transfer.future.set_result(transfer.tensor)

        try:
            if transfer.gpu is None:
                transfer.write()
                complete()
            else:
                transfer.gpu.copy_back(transfer.write, complete)
        except Exception as error:
            if not transfer.future.done():
                fail(transfer.future, error)
            raise
        finally:
            for buffer in (transfer.result, transfer.source):
                if buffer is not None:
                    self._pool_of(transfer).give(buffer)
            transfer.result = transfer.source = None
            transfer.result_bytes = NOTHING
