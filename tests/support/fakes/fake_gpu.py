"""A fake GPU: CPU tensors that count as written only later, and copies that take time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.gpu import downloads, streams


class FakeEvent:
    """An event of a fake stream."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: BaseException | None = None

    def happen(self, error: BaseException | None = None) -> None:
        """Wake up all threads that wait for the event."""
        self._error = error
        self._is_over.set()

    def synchronize(self) -> None:
        """See `Event.synchronize`."""
        assert self._is_over.wait(30), "it never came"
        if self._error is not None:
            raise RuntimeError(f"CUDA error: {self._error}")

    def delay(self, stream: Any) -> None:
        """See `Event.delay`; no CPU work runs on streams."""


class FakeStream:
    """Runs functions one after the other on its own thread, each after `delay_s`. It can be held."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.goes_on = threading.Event()
        self.goes_on.set()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], FakeEvent]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="fake-stream", daemon=True).start()

    def put(self, step: Callable[[], Any]) -> FakeEvent:
        """Run a function later."""
        event = FakeEvent()
        self._queue.put((step, event))
        return event

    def _run(self) -> None:
        while True:
            step, event = self._queue.get()
            self.goes_on.wait()
            time.sleep(self.delay_s)
            try:
                step()
                event.happen()
            except Exception as error:
                event.happen(error)
            del step


class FakeGpu:
    """Stands in for `gpu.Gpu`."""

    def __init__(self, device: torch.device) -> None:
        self.down = FakeStream()
        self.pool = ArenaPool(garbage)

    def fetch(self, encoding: Any, host: torch.Tensor, first: int, stop: int) -> FakeEvent:
        """See `Gpu.fetch`."""
        return self.down.put(lambda: encoding.fetch(host, first, stop))

    def copy_back(self, write: Callable[[], None], complete: Callable[[], None]) -> None:
        """See `Gpu.copy_back`."""
        write()
        complete()


def garbage(nbytes: int) -> torch.Tensor:
    """Return memory filled with NaN in float32, so that its use is noticed."""
    return torch.full((nbytes,), 0xFF, dtype=torch.uint8)


def pretend(delay_s: float, batch_bytes: int) -> None:
    """In this process, treat every tensor as a GPU tensor, written late by a stream and copied batch by batch."""

    class SlowGpu(FakeGpu):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            self.down.delay_s = delay_s

    computing = FakeStream(delay_s)

    def written(tensor: torch.Tensor) -> FakeEvent:
        values = tensor.detach().clone()
        with torch.no_grad():
            tensor.detach().fill_(1)  # must not be read yet
        return computing.put(lambda: tensor.detach().copy_(values))

    streams.Gpu = SlowGpu  # type: ignore[misc, assignment]
    streams.written = written  # type: ignore[assignment]
    streams.holds = lambda _tensor: True
    downloads.BATCH_BYTES = batch_bytes
