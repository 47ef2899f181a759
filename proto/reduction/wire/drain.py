"""Encode and decode the answer of the Drain call."""

from __future__ import annotations

from reduction.errors import MalformedFrame
from reduction.limits import DRAIN_S_MAX
from reduction.v1 import reduction_pb2 as pb
from reduction.wire.fields import parse


def drain_to_wire(timeout_s: float) -> bytes:
    """Encode the maximum number of seconds for which the reducer drains."""
    return pb.DrainResponse(timeout_seconds=timeout_s).SerializeToString()


def drain_from_wire(data: bytes) -> float:
    """Decode the maximum number of seconds for which the reducer drains.

    Raises:
        MalformedFrame: not a DrainResponse, or a time outside its limits.
    """
    timeout_s = parse(pb.DrainResponse, data).timeout_seconds
    if not 0 <= timeout_s <= DRAIN_S_MAX:
        raise MalformedFrame(f"DrainResponse.timeout_seconds is {timeout_s}; allowed: 0 to {DRAIN_S_MAX}")
    return timeout_s
