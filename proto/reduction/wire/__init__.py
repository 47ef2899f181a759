"""Encode and decode frames; the only package that knows the schema.

Push and Result go through `payload.py`, which keeps protobuf from copying their payload.
"""

from reduction.wire.drain import drain_from_wire, drain_to_wire
from reduction.wire.lobby import (
    lobby_request_from_wire,
    lobby_request_to_wire,
    lobby_response_from_wire,
    lobby_response_to_wire,
)
from reduction.wire.reducer_frames import reducer_frame_from_wire, reducer_frame_to_wire
from reduction.wire.status import status_from_wire, status_to_wire
from reduction.wire.worker_frames import collective, worker_frame_from_wire, worker_frame_to_wire

__all__ = [
    "collective",
    "drain_from_wire",
    "drain_to_wire",
    "lobby_request_from_wire",
    "lobby_request_to_wire",
    "lobby_response_from_wire",
    "lobby_response_to_wire",
    "reducer_frame_from_wire",
    "reducer_frame_to_wire",
    "status_from_wire",
    "status_to_wire",
    "worker_frame_from_wire",
    "worker_frame_to_wire",
]
