"""A link for which too few file descriptors are left. Its streams end immediately with an error that says so.

Opening it could use up the last descriptors, and then the training script could not open any file.
"""

from __future__ import annotations

import asyncio

from reduction.errors import ReductionError
from reduction.model import WorkerFrame
from reduction.transports.interface import Sink


class UnopenedEndpoint:
    """Stand-in for the reducer at an address; see `RemoteEndpoint`."""

    def __init__(self, address: str, error: ReductionError) -> None:
        self.address = address
        self._error = error

    def open(self, sink: Sink) -> UnopenedStream:
        """Open a stream that ends with this endpoint's error."""
        return UnopenedStream(sink, self._error)

    async def close(self) -> None:
        """Do nothing."""


class UnopenedStream:
    """A stream that ends on the next turn of the loop; see `RemoteStream`."""

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
        """Wait until `on_closed` has been called."""
        await self._closed.wait()

    def _end(self, sink: Sink, error: ReductionError) -> None:
        self._closed.set()
        sink.on_closed(error)
