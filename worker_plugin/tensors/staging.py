"""The copies between the user's tensors and the memory that the network uses.

On the way in, a tensor becomes a contribution, which does not change until every rank holds the result. A
tensor on the CPU is copied chunk by chunk, as each chunk is pushed (encoding.py). The network hides the copy,
and the chunk is sent while it is in the CPU's cache. A tensor on a GPU arrives in batches (gpu/downloads.py).

On the way out, the staging thread writes a whole result into the tensor and completes the future. Failures pass
through the same queue. So nothing is written to a tensor once its user has seen an error, and late data cannot
reach a later step.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.futures import fail
from worker_plugin.tensors.gpu.downloads import Downloads
from worker_plugin.tensors.transfer import NOTHING, Transfer

log = logging.getLogger(__name__)


class Staging:
    """The copying threads of a communicator. All methods but `join` return immediately.

    Args:
        pool: provides memory for collectives on the CPU.
        on_arriving: as for `Downloads`.
    """

    def __init__(self, pool: ArenaPool, on_arriving: Callable[[Transfer], None]) -> None:
        self._pool = pool
        self._on_arriving = on_arriving
        #: None before the first collective on a GPU. After that, all collectives pass through its thread, to stay in
        #: order.
        self._downloads: Downloads | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reduction-staging", daemon=True)
        self._thread.start()

    def download(self, transfer: Transfer) -> bool:
        """Hand the transfer to the download thread, which calls `on_arriving`; return whether that was necessary.

        It is not necessary while all tensors so far were on the CPU. For one thread at a time.
        """
        if self._downloads is None:
            if transfer.ready is None:
                return False
            self._downloads = Downloads(self._on_arriving)
        self._downloads.put(transfer)
        return True

    def begin(self, transfer: Transfer) -> None:
        """Prepare a transfer whose tensor is on the CPU, so that it can be pushed. For the loop thread."""
        transfer.encoding.open()
        transfer.own(self._pool.take(transfer.encoding.contribution_bytes))

    def prepare_result(self, transfer: Transfer) -> None:
        """Allocate the memory for the result, unless the transfer has it. For the loop thread."""
        if transfer.result is None:
            transfer.take_result(self._pool.take(transfer.encoding.result_bytes))

    def release(self, transfer: Transfer) -> None:
        """Reclaim the contribution's memory, since no reducer can ask for it any more. For the loop thread."""
        assert transfer.contribution is not None
        self._pool_of(transfer).give(transfer.contribution)

    def deliver(self, transfer: Transfer) -> None:
        """Copy the result to the tensor and complete the future."""
        transfer.encoding.close()  # its result is whole, so everything has been pushed
        self._queue.put(lambda: self._deliver(transfer))

    def fail(self, transfer: Transfer, error: Exception) -> None:
        """Complete the future with an error, unless it is complete. The tensor is not touched after that."""
        self._queue.put(lambda: None if transfer.future.done() else fail(transfer.future, error))

    def finish(self, last: Callable[[], None]) -> None:
        """Do everything requested so far, then call `last`, and end the threads."""
        if self._downloads is not None:
            self._downloads.put(None)
        self._queue.put(last)
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the threads have ended. On one of them, where callbacks of futures run, return immediately."""
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
            except Exception:  # set_result runs the user's callbacks, which must not end this thread
                log.exception("a copy or a callback of a future failed")
            del step  # otherwise this variable would keep a transfer's memory until the next step arrives
        # The callback's owner refers to this object. That cycle would keep all memory until garbage is collected.
        self._pool = ArenaPool()
        del self._on_arriving

    def _pool_of(self, transfer: Transfer) -> ArenaPool:
        return self._pool if transfer.gpu is None else transfer.gpu.pool

    def _deliver(self, transfer: Transfer) -> None:
        def complete() -> None:
            transfer.progress.finish()
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
            if transfer.result is not None:
                self._pool_of(transfer).give(transfer.result)
            transfer.result = None
            transfer.result_bytes = NOTHING
