"""The one seam between workers and reducers.

The reducer's engine implements `ReducerEndpoint` in process; every transport client implements it for a
remote reducer; one conformance suite (tests/conformance) runs against all of them. Everything here happens
on the event-loop thread of whoever opened the stream, and nothing blocks.
"""

from __future__ import annotations

from typing import Protocol

from reduction.errors import ReductionError
from reduction.model import ReducerFrame, WorkerFrame


class Sink(Protocol):
    """Where a stream delivers to. The owner of the stream implements it."""

    def on_frame(self, frame: ReducerFrame) -> None:
        """Take one frame, in order. A Result's payload may be kept, and must not be changed.

        Must not raise. May call `send`, here or on other streams.
        """

    def on_closed(self, error: ReductionError | None) -> None:
        """Learn that the stream is over, once, as the last call; `error` says why, None is a clean end."""


class PlacingSink(Sink, Protocol):
    """A `Sink` for transports that can receive a payload into memory of its choice."""

    def place(self, epoch: int, seq: int, chunk: int, nbytes: int) -> memoryview | None:
        """Return writable memory of `nbytes` for the payload of a result that begins to arrive.

        None: anywhere. `on_frame` follows when it is whole, with this very object as its payload; if the memory is
        needed for something else before, the owner says `divert` to the stream.
        """


class ReducerStream(Protocol):
    """One rank's stream to one reducer: first in, first out, both ways."""

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame. Never blocks or raises; frames for a stream that is over are dropped."""

    def close(self) -> None:
        """End the stream after the frames already sent. Idempotent; `on_closed` follows."""


class ReducerEndpoint(Protocol):
    """A reducer that streams can be opened to."""

    def open(self, sink: Sink) -> ReducerStream:
        """Open a stream; failure to connect arrives at `sink.on_closed`."""
