"""Bytes to frames: errors must be MalformedFrame, and accepted bytes must mean the same to the generated classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reduction import model, wire
from reduction.errors import MalformedFrame
from reduction.v1 import reduction_pb2 as pb

from worker_plugin.elastic.membership.entries import merge, said_from_entry


def worker_frame(data: bytes) -> None:
    """Parse a worker's bytes, as on the gRPC call and in a control message of the TCP plane."""
    frame = _there_and_back(wire.worker_frame_from_wire, wire.worker_frame_to_wire, data)
    if isinstance(frame, model.Push):
        push = pb.WorkerFrame.FromString(data).push
        assert (push.payload, push.seq, push.held) == (frame.payload, frame.seq, frame.held)


def reducer_frame(data: bytes) -> None:
    """Parse a reducer's bytes."""
    frame = _there_and_back(wire.reducer_frame_from_wire, wire.reducer_frame_to_wire, data)
    if isinstance(frame, model.Result):
        result = pb.ReducerFrame.FromString(data).result
        assert (result.payload, result.seq, result.minimum) == (frame.payload, frame.seq, frame.minimum)


def status(data: bytes) -> None:
    """Parse the response of a Status call, which `reducer status` reads."""
    answer = _decoded(wire.status_from_wire, data)
    if answer is not None:
        # Encoded, because an uptime of NaN is not equal to itself.
        again = wire.status_to_wire(answer)
        assert wire.status_to_wire(wire.status_from_wire(again)) == again


def lobby_request(data: bytes) -> None:
    """Parse what a worker of an elastic job sends to a reducer."""
    _there_and_back(wire.lobby_request_from_wire, wire.lobby_request_to_wire, data)


def lobby_response(data: bytes) -> None:
    """Parse what a reducer sends to a worker of an elastic job, and the entries of other workers in it."""
    news = _there_and_back(wire.lobby_response_from_wire, wire.lobby_response_to_wire, data)
    heard, _ = merge([news.entries if isinstance(news, model.LobbyNews) else ()])
    for said in heard.values():
        assert said_from_entry(said.to_entry()) == replace(said, is_gone=False)


def drain(data: bytes) -> None:
    """Parse the response of a Drain call, which `reducer drain` reads."""
    _there_and_back(wire.drain_from_wire, wire.drain_to_wire, data)


def _there_and_back(
    from_wire: Callable[[bytes], object], to_wire: Callable[..., bytes], data: bytes
) -> object:
    """Return the frame, or None if it is malformed."""
    frame = _decoded(from_wire, data)
    if frame is not None:
        assert from_wire(to_wire(frame)) == frame, "it must survive the way back"
    return frame


def _decoded(from_wire: Callable[[bytes], object], data: bytes) -> object:
    try:
        return from_wire(data)
    except MalformedFrame:
        return None
