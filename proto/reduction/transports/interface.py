"""The interface between workers and reducers.

The reducer's engine is a `ReducerEndpoint` in its own process. Every transport of the worker is a `RemoteEndpoint`.
All behave the same, and one conformance suite (tests/conformance) runs against them all. Everything here happens on
the event-loop thread of the code that opened the stream, and nothing blocks.
"""

from __future__ import annotations

from typing import Protocol

from reduction.errors import ReductionError
from reduction.model import ReducerFrame, WorkerFrame
from reduction.pacing import Sent


class Sink(Protocol):
    """The receiver of a stream's frames. The owner of the stream implements it."""

    def on_frame(self, frame: ReducerFrame) -> None:
        """Take one frame, in order. A Result's payload may be kept, and must not be changed.

        Must not raise. May call `send`, here or on other streams.
        """

    def on_closed(self, error: ReductionError | None) -> None:
        """Note the end of the stream. Called once, as the last call; `error` is the reason, None is a clean end."""


class ResultSink(Sink, Protocol):
    """A `Sink` that can provide memory for results. Transports without support for this never ask."""

    def destination(self, epoch: int, seq: int, chunk: int, nbytes: int) -> memoryview | None:
        """Return writable memory of `nbytes` for the payload of an arriving result; None lets the transport choose.

        `on_frame` follows when the payload is complete, with this object as its payload unless `divert` was called in
        between.
        """


class ReducerStream(Protocol):
    """One rank's stream to one reducer, first in, first out in both directions."""

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame. Never blocks or raises. Frames for an ended stream are dropped.

        The payload of a Push must not change until its result has arrived or the stream has ended.
        """

    def close(self) -> None:
        """End the stream after the frames already sent. Idempotent; `on_closed` follows.

        The sink is no longer asked for destinations, and memory that it provided is no longer written to.
        """


class ReducerEndpoint(Protocol):
    """A reducer that streams can be opened to."""

    def open(self, sink: ResultSink) -> ReducerStream:
        """Open a stream. A failure to connect is reported to `sink.on_closed`."""


class RemoteStream(ReducerStream, Protocol):
    """A stream over a network."""

    def divert(self) -> None:
        """Receive the rest of a payload in flight into other memory, because its destination is needed."""

    async def wait_closed(self) -> None:
        """Return when `on_closed` has been called."""

    @property
    def sent(self) -> Sent | None:
        """Totals of the stream's own data connection; None if it has none, or if they are not known."""

    def pace(self, bytes_per_s: int) -> None:
        """Limit sending to this many bytes per second, where that is possible."""

    @property
    def descriptor(self) -> int:
        """The file descriptor of the stream's own data connection; -1 if it has none."""

    @property
    def plane(self) -> str:
        """Name of the stream's own data connection; empty if it has none and uses only gRPC."""


class RemoteEndpoint(Protocol):
    """A reducer reached over a network."""

    #: HOST:PORT of the gRPC plane.
    address: str

    def open(self, sink: ResultSink) -> RemoteStream:
        """Open a stream, as `ReducerEndpoint.open` does."""

    async def close(self) -> None:
        """End all streams and the connection."""
