"""Encode and decode frames from reducers. Decoded values are never trusted."""

from __future__ import annotations

from reduction import limits, model
from reduction.errors import MalformedFrame
from reduction.v1 import reduction_pb2 as pb
from reduction.wire import payload as payloads
from reduction.wire.fields import (
    abort_from_pb,
    abort_to_pb,
    configuration_from_pb,
    configuration_to_pb,
    parse,
    peer_from_pb,
    peer_to_pb,
    place_from_pb,
    place_to_pb,
    require,
    require_id,
    waiting_from_pb,
    waiting_to_pb,
)

_RESULT = pb.ReducerFrame.RESULT_FIELD_NUMBER


def reducer_frame_to_wire(frame: model.ReducerFrame) -> bytes:
    """Encode a frame; the only copy of a payload is the one into the returned bytes."""
    match frame:
        case model.Result(epoch, seq, chunk, minimum, payload, crc):
            head = pb.Result(epoch=epoch, seq=seq, chunk=chunk, minimum=minimum, crc32c=crc)
            return payloads.join(_RESULT, head.SerializeToString(), payload)
        case model.Welcome():
            welcome = pb.Welcome(
                incarnation=frame.incarnation,
                credit_bytes=frame.credit_bytes,
                data_port=frame.data_port,
                data_key=frame.data_key,
                siblings=frame.siblings,
                place=place_to_pb(frame.place),
            )
            return pb.ReducerFrame(welcome=welcome).SerializeToString()
        case model.Moved():
            return pb.ReducerFrame(moved=pb.Moved()).SerializeToString()
        case model.Configure(configuration):
            return pb.ReducerFrame(configure=configuration_to_pb(configuration)).SerializeToString()
        case model.Start(epoch, minimum):
            return pb.ReducerFrame(start=pb.Start(epoch=epoch, minimum=minimum)).SerializeToString()
        case model.Minimum(minimum):
            return pb.ReducerFrame(minimum=pb.Minimum(minimum=minimum)).SerializeToString()
        case model.LinkRate(bytes_per_s):
            return pb.ReducerFrame(link_rate=pb.LinkRate(bytes_per_s=bytes_per_s)).SerializeToString()
        case model.Peers(peers, draining):
            seen = pb.Peers(peers=map(peer_to_pb, peers), draining=draining)
            return pb.ReducerFrame(peers=seen).SerializeToString()
        case model.Waiting():
            return pb.ReducerFrame(waiting=waiting_to_pb(frame)).SerializeToString()
        case model.Abort():
            return pb.ReducerFrame(abort=abort_to_pb(frame)).SerializeToString()


def reducer_frame_from_wire(data: bytes) -> model.ReducerFrame:
    """Decode and validate a frame from a reducer.

    Raises:
        MalformedFrame: not a frame, or a field outside its limits; the message names field and value.
    """
    split = payloads.split(data, _RESULT)
    if split is not None:
        return _result_from_pb(parse(pb.Result, split[0]), split[1])
    require("length of a reducer frame that is not a Result", len(data), 0, limits.REDUCER_CONTROL_BYTES_MAX)
    message = parse(pb.ReducerFrame, data)
    match message.WhichOneof("body"):
        case "welcome":
            return _welcome_from_pb(message.welcome)
        case "moved":
            return model.Moved()
        case "configure":
            return model.Configure(configuration_from_pb(message.configure))
        case "start":
            return model.Start(message.start.epoch, message.start.minimum)
        case "result":
            return _result_from_pb(message.result, memoryview(message.result.payload))
        case "minimum":
            return model.Minimum(message.minimum.minimum)
        case "link_rate":
            return model.LinkRate(message.link_rate.bytes_per_s)
        case "peers":
            require("Peers.peers", len(message.peers.peers), 0, limits.WORLD_SIZE_MAX)
            return model.Peers(tuple(map(peer_from_pb, message.peers.peers)), message.peers.draining)
        case "waiting":
            return waiting_from_pb(message.waiting)
        case "abort":
            return abort_from_pb(message.abort)
        case _:
            raise MalformedFrame(f"a reducer frame of {len(data)} bytes has no body that this version knows")


def _welcome_from_pb(welcome: pb.Welcome) -> model.Welcome:
    require_id("Welcome.incarnation", welcome.incarnation)
    require("Welcome.credit_bytes", welcome.credit_bytes, 1, limits.CREDIT_BYTES_MAX)
    require("Welcome.data_port", welcome.data_port, 0, limits.PORT_MAX)
    if welcome.data_port:
        require(
            "length of Welcome.data_key", len(welcome.data_key), limits.DATA_KEY_BYTES, limits.DATA_KEY_BYTES
        )
    require("number of Welcome.siblings", len(welcome.siblings), 0, limits.SIBLINGS_MAX)
    for port in welcome.siblings:
        require("Welcome.siblings", port, 1, limits.PORT_MAX)
    return model.Welcome(
        welcome.incarnation,
        welcome.credit_bytes,
        welcome.data_port,
        welcome.data_key,
        tuple(welcome.siblings),
        place_from_pb("Welcome.place", welcome.place),
    )


def _result_from_pb(result: pb.Result, payload: memoryview) -> model.Result:
    require("length of Result.payload", payload.nbytes, 0, limits.CHUNK_BYTES_MAX)
    crc = result.crc32c if result.HasField("crc32c") else None
    return model.Result(result.epoch, result.seq, result.chunk, result.minimum, payload, crc)
