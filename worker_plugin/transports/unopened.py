"""A link for which this process has no descriptors left: its streams end at once, with an error that says so.

Opening it would take the last ones from the training script, whose next open file fails then.
"""

from __future__ import annotations

import asyncio

from reduction.errors import ReductionError
from reduction.model import WorkerFrame
from reduction.transports.interface import Sink


class UnopenedEndpoint:
    """Stands for the reducer at an address; see `ReducerEndpoint`."""

    def __init__(self, address: str, error: ReductionError) -> None:
        self.address = address
        self._error = error

    def open(self, sink: Sink) -> UnopenedStream:
        """Open a stream that ends with our error."""
        return UnopenedStream(sink, self._error)

    async def close(self) -> None:
        """Do nothing."""


class UnopenedStream:
    """A stream that has ended as soon as whoever opened it can hear of it; see `ReducerStream`."""

    descriptor = -1
    packets_lost = 0

    def __init__(self, sink: Sink, error: ReductionError) -> None:
        self._closed = asyncio.Event()
        asyncio.get_running_loop().call_soon(self._end, sink, error)

    def send(self, frame: WorkerFrame) -> None:
        """Lose a frame."""

    def close(self) -> None:
        """Do nothing."""

    def divert(self) -> None:
        """Do nothing."""

    async def wait_closed(self) -> None:
        """Wait until `on_closed` was called."""
        await self._closed.wait()

    def _end(self, sink: Sink, error: ReductionError) -> None:
        self._closed.set()
        sink.on_closed(error)
