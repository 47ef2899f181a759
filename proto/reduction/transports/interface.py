"""The one seam between workers and reducers.

The reducer's engine is a `ReducerEndpoint` in its own process. Every transport of the worker is a `RemoteEndpoint`,
and behaves the same: one conformance suite (tests/conformance) runs against all of them. Everything here happens on
the event-loop thread of whoever opened the stream, and nothing blocks.
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
        """Learn that the stream is over, once, as the last call; `error` says why, None is a clean end."""


class ResultSink(Sink, Protocol):
    """A `Sink` that can say where a result should be received. A transport that cannot do that never asks."""

    def destination(self, epoch: int, seq: int, chunk: int, nbytes: int) -> memoryview | None:
        """Return writable memory of `nbytes` for the payload of a result that begins to arrive; None: anywhere.

        `on_frame` follows when the payload is whole, and has this very object as its payload, unless `divert` was
        called in between.
        """


class ReducerStream(Protocol):
    """One rank's stream to one reducer: first in, first out, both ways."""

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame. Never blocks or raises; frames for a stream that is over are dropped.

        The payload of a Push must stay as it is until its result or the end of the stream has come.
        """

    def close(self) -> None:
        """End the stream after the frames already sent. Idempotent; `on_closed` follows.

        The sink is not asked for a destination any more, and no memory that it gave is written to.
        """


class ReducerEndpoint(Protocol):
    """A reducer that streams can be opened to."""

    def open(self, sink: ResultSink) -> ReducerStream:
        """Open a stream; failure to connect arrives at `sink.on_closed`."""


class RemoteStream(ReducerStream, Protocol):
    """A stream that goes over a network."""

    def divert(self) -> None:
        """Receive the rest of a payload that is under way elsewhere, because its destination has another use."""

    async def wait_closed(self) -> None:
        """Return when `on_closed` has been called."""

    @property
    def sent(self) -> Sent | None:
        """What the stream's own data connection has sent; None if it has none, or nothing is known."""

    def pace(self, bytes_per_s: int) -> None:
        """Limit what is sent to this many bytes per second, where that is possible."""

    @property
    def descriptor(self) -> int:
        """The file descriptor of the stream's own data connection; -1 if it has none."""

    @property
    def plane(self) -> str:
        """What the stream's own data connection is called; empty if it has none, and all goes over gRPC."""


class RemoteEndpoint(Protocol):
    """A reducer that is reached over a network."""

    #: HOST:PORT of the gRPC plane.
    address: str

    def open(self, sink: ResultSink) -> RemoteStream:
        """Open a stream, as `ReducerEndpoint.open` does."""

    async def close(self) -> None:
        """End all streams and the connection."""
