"""By message of the schema, how to encode and to decode it."""

from reduction import wire
from reduction.v1 import reduction_pb2 as pb

CODINGS = {
    pb.WorkerFrame: (wire.worker_frame_to_wire, wire.worker_frame_from_wire),
    pb.ReducerFrame: (wire.reducer_frame_to_wire, wire.reducer_frame_from_wire),
    pb.StatusResponse: (wire.status_to_wire, wire.status_from_wire),
    pb.LobbyRequest: (wire.lobby_request_to_wire, wire.lobby_request_from_wire),
    pb.LobbyResponse: (wire.lobby_response_to_wire, wire.lobby_response_from_wire),
}


def decode(message):
    """Return what is decoded of the bytes of a generated message."""
    return CODINGS[type(message)][1](message.SerializeToString())


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])
