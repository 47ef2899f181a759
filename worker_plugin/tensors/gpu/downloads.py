"""The download thread: copies tensors from GPUs to host memory, and hands them on in the order they were issued."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import torch

from worker_plugin.tensors.gpu import streams
from worker_plugin.tensors.transfer import Transfer

log = logging.getLogger(__name__)

#: Bytes of a tensor copied at a time. They take 0.1 ms of PCIe, and can then be pushed.
BATCH_BYTES = 2 << 20


class Downloads:
    """The download thread of a communicator that has collectives on GPUs.

    Args:
        on_arriving: called on the thread with every transfer, in the order of `put`. By then the first batch of a
            tensor on a GPU is in host memory. A transfer without a contribution could not be copied. Transfers on the
            CPU pass through unchanged, so that all of them stay in order.
    """

    def __init__(self, on_arriving: Callable[[Transfer], None]) -> None:
        self._on_arriving = on_arriving
        self._gpus: dict[torch.device, streams.Gpu] = {}
        self._queue: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="reduction-download", daemon=True)
        self.thread.start()

    def put(self, transfer: Transfer | None) -> None:
        """Add the next transfer; None ends the thread. For any thread."""
        self._queue.put(transfer)

    def _run(self) -> None:
        while (transfer := self._queue.get()) is not None:
            try:
                if transfer.ready is not None:
                    transfer.ready.synchronize()
                    self._fetch(transfer)
            except Exception:
                log.exception("a tensor on %s could not be copied", transfer.tensor.device)
            self._on_arriving(transfer)
            del transfer  # otherwise this variable would keep its memory until the next one arrives
        del self._on_arriving  # it refers to this object: a cycle
        self._gpus.clear()  # frees their page-locked memory, except what is still to be copied back

    def _fetch(self, transfer: Transfer) -> None:
        device, encoding = transfer.tensor.device, transfer.encoding
        source = self._gpus.get(device)
        if source is None:
            source = self._gpus[device] = streams.Gpu(device)
        transfer.gpu = source
        # All memory is allocated on this thread, because page-locking takes 0.3 s per GB and the loop thread has
        # streams to serve.
        contribution = source.pool.take(encoding.contribution_bytes)
        transfer.take_result(source.pool.take(encoding.result_bytes))
        copy, numel = streams.PendingCopy(), transfer.tensor.numel()
        step = max(1, BATCH_BYTES // transfer.tensor.element_size())
        for first in range(0, numel, step):
            copy.add(first, source.fetch(encoding, contribution, first, min(first + step, numel)))
        copy.wait(1)
        transfer.copy = copy
        transfer.own(contribution)
