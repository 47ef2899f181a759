"""Encode and decode frames from workers. Decoded values are never trusted."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from reduction import limits, model
from reduction.errors import MalformedFrame
from reduction.v1 import reduction_pb2 as pb
from reduction.wire import payload as payloads
from reduction.wire.fields import (
    abort_from_pb,
    abort_to_pb,
    configuration_from_pb,
    configuration_to_pb,
    enum_member,
    parse,
    place_from_pb,
    place_to_pb,
    require,
    require_id,
    require_printable,
)

_PUSH = pb.WorkerFrame.PUSH_FIELD_NUMBER


def worker_frame_to_wire(frame: model.WorkerFrame) -> bytes:
    """Encode a frame; the only copy of a payload is the one into the returned bytes."""
    match frame:
        case model.Push(epoch, seq, chunk, collective, held, payload, crc):
            head = pb.Push(
                epoch=epoch,
                seq=seq,
                chunk=chunk,
                held=held,
                crc32c=crc,
                collective=pb.Collective(
                    op=cast(pb.ReduceOp, collective.op),
                    dtype=cast(pb.DType, collective.dtype),
                    numel=collective.numel,
                    fingerprint=collective.fingerprint,
                ),
            )
            return payloads.join(_PUSH, head.SerializeToString(), payload)
        case model.Join():
            join = pb.Join(
                protocol=frame.protocol,
                job=frame.job,
                instance=frame.instance,
                rank=frame.rank,
                world_size=frame.world_size,
                nonce=frame.nonce,
                host=frame.host,
                minimum=frame.minimum,
                credit_bytes=frame.credit_bytes,
                wire_dtype=frame.wire_dtype,
                local_size=frame.local_size,
                group=frame.group,
                place=place_to_pb(frame.place),
                named=None if frame.named is None else _named_to_pb(frame.named),
                run=frame.run,
                life_port=frame.life_port,
            )
            return pb.WorkerFrame(join=join).SerializeToString()
        case model.Hello(configuration, held):
            hello = pb.Hello(configuration=configuration_to_pb(configuration), held=held)
            return pb.WorkerFrame(hello=hello).SerializeToString()
        case model.Ack(held):
            return pb.WorkerFrame(ack=pb.Ack(held=held)).SerializeToString()
        case model.LinkRate(bytes_per_s):
            return pb.WorkerFrame(link_rate=pb.LinkRate(bytes_per_s=bytes_per_s)).SerializeToString()
        case model.Goodbye(held, minimum):
            return pb.WorkerFrame(goodbye=pb.Goodbye(held=held, minimum=minimum)).SerializeToString()
        case model.Abort():
            return pb.WorkerFrame(abort=abort_to_pb(frame)).SerializeToString()
        case model.Moved():
            return pb.WorkerFrame(moved=pb.Moved()).SerializeToString()


def worker_frame_from_wire(data: bytes) -> model.WorkerFrame:
    """Decode and validate a frame from a worker.

    Raises:
        MalformedFrame: not a frame, or a field outside its limits; the message names field and value.
    """
    split = payloads.split(data, _PUSH)
    if split is not None:
        return _push_from_pb(parse(pb.Push, split[0]), split[1])
    require("length of a worker frame that is not a Push", len(data), 0, limits.WORKER_CONTROL_BYTES_MAX)
    message = parse(pb.WorkerFrame, data)
    match message.WhichOneof("body"):
        case "join":
            return _join_from_pb(message.join)
        case "hello":
            return model.Hello(configuration_from_pb(message.hello.configuration), message.hello.held)
        case "push":
            return _push_from_pb(message.push, memoryview(message.push.payload))
        case "ack":
            return model.Ack(message.ack.held)
        case "link_rate":
            return model.LinkRate(message.link_rate.bytes_per_s)
        case "goodbye":
            return model.Goodbye(message.goodbye.held, message.goodbye.minimum)
        case "abort":
            return abort_from_pb(message.abort)
        case "moved":
            return model.Moved()
        case _:
            raise MalformedFrame(f"a worker frame of {len(data)} bytes has no body that this version knows")


@lru_cache(maxsize=1024)  # called for every push; a training run repeats the same few
def collective(op: int, dtype: int, numel: int, fingerprint: int) -> model.Collective:
    """Return the collective with these numbers from a worker.

    Raises:
        MalformedFrame: a number is outside its limits.
    """
    require("Push.collective.numel", numel, 0, limits.NUMEL_MAX)
    agreed = model.Collective(
        enum_member("Collective.op", model.ReduceOp, op),
        enum_member("Collective.dtype", model.DType, dtype),
        numel,
        fingerprint,
    )
    if not agreed.dtype.allows(agreed.op):
        raise MalformedFrame(
            f"Push.collective asks for {agreed.op.name} of {agreed.dtype.name}, which is not defined"
        )
    return agreed


def _join_from_pb(join: pb.Join) -> model.Join:
    # Another version may have other limits, so its fields are not checked. It must receive
    # UNSUPPORTED_VERSION.
    place, named = model.NOWHERE, None
    if join.protocol == model.PROTOCOL_VERSION:
        require("Join.world_size", join.world_size, 1, limits.WORLD_SIZE_MAX)
        if join.rank >= join.world_size:
            raise MalformedFrame(
                f"Join.rank is {join.rank}; it must be below the world size {join.world_size}"
            )
        require("length of Join.job", len(join.job.encode()), 1, limits.JOB_NAME_BYTES_MAX)
        require("length of Join.host", len(join.host.encode()), 0, limits.HOST_BYTES_MAX)
        require("length of Join.group", len(join.group.encode()), 0, limits.GROUP_BYTES_MAX)
        require("length of Join.run", len(join.run.encode()), 0, limits.RUN_BYTES_MAX)
        require_printable("Join.job", join.job)
        require_printable("Join.host", join.host)
        require_printable("Join.group", join.group)
        require_printable("Join.run", join.run)
        require_id("Join.nonce", join.nonce)
        if join.instance or join.rank == 0:
            require_id("Join.instance", join.instance)
        require("Join.life_port", join.life_port, 0, limits.PORT_MAX)
        require("Join.local_size", join.local_size, 0, limits.WORLD_SIZE_MAX)
        require("Join.credit_bytes", join.credit_bytes, limits.CHUNK_BYTES_MIN, limits.CREDIT_BYTES_MAX)
        place = place_from_pb("Join.place", join.place)
        if join.HasField("named"):
            named = _named_from_pb(join.named)
    return model.Join(
        join.job,
        join.instance,
        join.rank,
        join.world_size,
        join.nonce,
        join.host,
        join.minimum,
        join.credit_bytes,
        join.protocol,
        join.wire_dtype,
        join.local_size or 1,
        join.group,
        place,
        named,
        join.run,
        join.life_port,
    )


def _named_to_pb(named: model.NamedReducers) -> pb.NamedReducers:
    return pb.NamedReducers(text=named.text, count=named.count)


def _named_from_pb(named: pb.NamedReducers) -> model.NamedReducers:
    require("length of Join.named.text", len(named.text.encode()), 1, limits.NAMED_BYTES_MAX)
    require_printable("Join.named.text", named.text)
    require("Join.named.count", named.count, 1, limits.ADDRESSES_MAX)
    return model.NamedReducers(named.text, named.count)


def _push_from_pb(push: pb.Push, payload: memoryview) -> model.Push:
    require("length of Push.payload", payload.nbytes, 0, limits.CHUNK_BYTES_MAX)
    agreed = collective(
        push.collective.op, push.collective.dtype, push.collective.numel, push.collective.fingerprint
    )
    crc = push.crc32c if push.HasField("crc32c") else None
    return model.Push(push.epoch, push.seq, push.chunk, agreed, push.held, payload, crc)
