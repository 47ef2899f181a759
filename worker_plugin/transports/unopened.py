"""A link for which too few file descriptors are left: its streams end at once, with an error that says so.

Opening it could take the last descriptors, and then the training script could open no file.
"""

from __future__ import annotations

import asyncio

from reduction.errors import ReductionError
from reduction.model import WorkerFrame
from reduction.transports.interface import Sink


class UnopenedEndpoint:
    """Stands for the reducer at an address; see `RemoteEndpoint`."""

    def __init__(self, address: str, error: ReductionError) -> None:
        self.address = address
        self._error = error

    def open(self, sink: Sink) -> UnopenedStream:
        """Open a stream that ends with our error."""
        return UnopenedStream(sink, self._error)

    async def close(self) -> None:
        """Do nothing."""


class UnopenedStream:
    """A stream that tells its sink on the next turn of the loop that it has ended; see `RemoteStream`."""

    descriptor = -1
    sent = None
    plane = ""

    def __init__(self, sink: Sink, error: ReductionError) -> None:
        self._closed = asyncio.Event()
        asyncio.get_running_loop().call_soon(self._end, sink, error)

    def send(self, frame: WorkerFrame) -> None:
        """Drop the frame."""

    def close(self) -> None:
        """Do nothing."""

    def pace(self, bytes_per_s: int) -> None:
        """Do nothing."""

    def divert(self) -> None:
        """Do nothing."""

    async def wait_closed(self) -> None:
        """Wait until `on_closed` was called."""
        await self._closed.wait()

    def _end(self, sink: Sink, error: ReductionError) -> None:
        self._closed.set()
        sink.on_closed(error)
