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
        """Take one frame, in order. A Result's payload is valid only until this returns.

        Must not raise. May call `send`, here or on other streams.
        """

    def on_closed(self, error: ReductionError | None) -> None:
        """Learn that the stream is over, once, as the last call; `error` says why, None is a clean end."""


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
