"""Frames to bytes and back; the only file that knows the schema. Trusts nothing that it decodes.

Push and Result go through `framing.py`, which keeps protobuf from copying their payload.
"""

from __future__ import annotations

import enum
import math
from functools import lru_cache
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from reduction import limits, model
from reduction.errors import MalformedFrame
from reduction.v1 import reduction_pb2 as pb
from reduction.wire import framing

_PUSH = pb.WorkerFrame.PUSH_FIELD_NUMBER
_RESULT = pb.ReducerFrame.RESULT_FIELD_NUMBER

_M = TypeVar("_M", bound=Message)
_E = TypeVar("_E", bound=enum.IntEnum)


# ---- worker -> reducer ----


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
            return framing.join(_PUSH, head.SerializeToString(), payload)
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
            )
            return pb.WorkerFrame(join=join).SerializeToString()
        case model.Hello(configuration, held):
            hello = pb.Hello(configuration=_configuration_to_pb(configuration), held=held)
            return pb.WorkerFrame(hello=hello).SerializeToString()
        case model.Ack(held):
            return pb.WorkerFrame(ack=pb.Ack(held=held)).SerializeToString()
        case model.Goodbye(held, minimum):
            return pb.WorkerFrame(goodbye=pb.Goodbye(held=held, minimum=minimum)).SerializeToString()
        case model.Abort():
            return pb.WorkerFrame(abort=_abort_to_pb(frame)).SerializeToString()
        case model.Moved():
            return pb.WorkerFrame(moved=pb.Moved()).SerializeToString()


def worker_frame_from_wire(data: bytes) -> model.WorkerFrame:
    """Decode and validate what a worker sent.

    Raises:
        MalformedFrame: not a frame, or a field outside its limits; the message names field and value.
    """
    split = framing.split(data, _PUSH)
    if split is not None:
        return _push_from_pb(_parse(pb.Push, split[0]), split[1])
    _require("length of a worker frame that is no Push", len(data), 0, limits.WORKER_CONTROL_BYTES_MAX)
    message = _parse(pb.WorkerFrame, data)
    match message.WhichOneof("body"):
        case "join":
            return _join_from_pb(message.join)
        case "hello":
            return model.Hello(_configuration_from_pb(message.hello.configuration), message.hello.held)
        case "push":
            return _push_from_pb(message.push, memoryview(message.push.payload))
        case "ack":
            return model.Ack(message.ack.held)
        case "goodbye":
            return model.Goodbye(message.goodbye.held, message.goodbye.minimum)
        case "abort":
            return _abort_from_pb(message.abort)
        case "moved":
            return model.Moved()
        case _:
            raise MalformedFrame(f"a worker frame of {len(data)} bytes has no body that this version knows")


# ---- reducer -> worker ----


def reducer_frame_to_wire(frame: model.ReducerFrame) -> bytes:
    """Encode a frame; the only copy of a payload is the one into the returned bytes."""
    match frame:
        case model.Result(epoch, seq, chunk, minimum, payload, crc):
            head = pb.Result(epoch=epoch, seq=seq, chunk=chunk, minimum=minimum, crc32c=crc)
            return framing.join(_RESULT, head.SerializeToString(), payload)
        case model.Welcome():
            welcome = pb.Welcome(
                incarnation=frame.incarnation,
                credit_bytes=frame.credit_bytes,
                data_port=frame.data_port,
                data_key=frame.data_key,
                siblings=frame.siblings,
            )
            return pb.ReducerFrame(welcome=welcome).SerializeToString()
        case model.Moved():
            return pb.ReducerFrame(moved=pb.Moved()).SerializeToString()
        case model.Configure(configuration):
            return pb.ReducerFrame(configure=_configuration_to_pb(configuration)).SerializeToString()
        case model.Start(epoch, minimum):
            return pb.ReducerFrame(start=pb.Start(epoch=epoch, minimum=minimum)).SerializeToString()
        case model.Minimum(minimum):
            return pb.ReducerFrame(minimum=pb.Minimum(minimum=minimum)).SerializeToString()
        case model.Peers(peers, draining):
            seen = pb.Peers(peers=map(_peer_to_pb, peers), draining=draining)
            return pb.ReducerFrame(peers=seen).SerializeToString()
        case model.Waiting():
            waiting = pb.Waiting(
                seq=frame.seq,
                chunk=frame.chunk,
                waited_s=frame.waited_s,
                count=frame.count,
                missing=map(_peer_to_pb, frame.missing),
                epoch=frame.epoch,
            )
            return pb.ReducerFrame(waiting=waiting).SerializeToString()
        case model.Abort():
            return pb.ReducerFrame(abort=_abort_to_pb(frame)).SerializeToString()


def reducer_frame_from_wire(data: bytes) -> model.ReducerFrame:
    """Decode and validate what a reducer sent.

    Raises:
        MalformedFrame: not a frame, or a field outside its limits; the message names field and value.
    """
    split = framing.split(data, _RESULT)
    if split is not None:
        return _result_from_pb(_parse(pb.Result, split[0]), split[1])
    _require("length of a reducer frame that is no Result", len(data), 0, limits.REDUCER_CONTROL_BYTES_MAX)
    message = _parse(pb.ReducerFrame, data)
    match message.WhichOneof("body"):
        case "welcome":
            return _welcome_from_pb(message.welcome)
        case "moved":
            return model.Moved()
        case "configure":
            return model.Configure(_configuration_from_pb(message.configure))
        case "start":
            return model.Start(message.start.epoch, message.start.minimum)
        case "result":
            return _result_from_pb(message.result, memoryview(message.result.payload))
        case "minimum":
            return model.Minimum(message.minimum.minimum)
        case "peers":
            _require("Peers.peers", len(message.peers.peers), 0, limits.WORLD_SIZE_MAX)
            return model.Peers(tuple(map(_peer_from_pb, message.peers.peers)), message.peers.draining)
        case "waiting":
            return _waiting_from_pb(message.waiting)
        case "abort":
            return _abort_from_pb(message.abort)
        case _:
            raise MalformedFrame(f"a reducer frame of {len(data)} bytes has no body that this version knows")


# ---- status ----


def status_to_wire(status: model.ReducerStatus) -> bytes:
    """Encode the answer of the Status call."""
    jobs = [
        pb.JobStatus(
            job=job.job,
            world_size=job.world_size,
            peers=map(_peer_to_pb, job.peers),
            epoch=job.epoch,
            started=job.started,
            minimum=job.minimum,
            open_slots=job.open_slots,
            reserved_bytes=job.reserved_bytes,
            received_bytes=job.received_bytes,
            sent_bytes=job.sent_bytes,
            chunk_bytes=job.chunk_bytes,
            credit_bytes=job.credit_bytes,
            under_way_bytes=job.under_way_bytes,
            last=[pb.LastRank(rank=one.rank, chunks=one.chunks, waited_s=one.waited_s) for one in job.last],
            waits=pb.Waits(
                p50_s=job.waits.p50_s, p90_s=job.waits.p90_s, p99_s=job.waits.p99_s, max_s=job.waits.max_s
            ),
            group=job.group,
        )
        for job in status.jobs
    ]
    return pb.StatusResponse(
        version=status.version,
        incarnation=status.incarnation,
        uptime_seconds=status.uptime_seconds,
        draining=status.draining,
        memory_reserved_bytes=status.memory_reserved_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        jobs=jobs,
        siblings=status.siblings,
    ).SerializeToString()


def status_from_wire(data: bytes) -> model.ReducerStatus:
    """Decode the answer of the Status call.

    Raises:
        MalformedFrame: not a StatusResponse, or a field outside its limits.
    """
    status = _parse(pb.StatusResponse, data)
    _require("number of StatusResponse.jobs", len(status.jobs), 0, limits.STATUS_JOBS_MAX)
    jobs = (
        model.JobStatus(
            job=job.job,
            world_size=job.world_size,
            peers=tuple(map(_peer_from_pb, job.peers)),
            epoch=job.epoch,
            started=job.started,
            minimum=job.minimum,
            open_slots=job.open_slots,
            reserved_bytes=job.reserved_bytes,
            received_bytes=job.received_bytes,
            sent_bytes=job.sent_bytes,
            chunk_bytes=job.chunk_bytes,
            credit_bytes=job.credit_bytes,
            under_way_bytes=job.under_way_bytes,
            last=tuple(model.LastRank(one.rank, one.chunks, one.waited_s) for one in job.last),
            waits=model.WaitTimes(job.waits.p50_s, job.waits.p90_s, job.waits.p99_s, job.waits.max_s),
            group=job.group,
        )
        for job in status.jobs
    )
    return model.ReducerStatus(
        version=status.version,
        incarnation=status.incarnation,
        uptime_seconds=status.uptime_seconds,
        draining=status.draining,
        memory_reserved_bytes=status.memory_reserved_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        jobs=tuple(jobs),
        siblings=tuple(status.siblings),
    )


# ---- pieces ----


@lru_cache(maxsize=1024)  # asked for with every push, and a training run repeats the same few
def collective(op: int, dtype: int, numel: int, fingerprint: int) -> model.Collective:
    """Return the collective with these numbers, which a worker sent.

    Raises:
        MalformedFrame: a number is outside its limits.
    """
    _require("Push.collective.numel", numel, 0, limits.NUMEL_MAX)
    agreed = model.Collective(
        _enum("Collective.op", model.ReduceOp, op),
        _enum("Collective.dtype", model.DType, dtype),
        numel,
        fingerprint,
    )
    if not agreed.dtype.allows(agreed.op):
        raise MalformedFrame(
            f"Push.collective asks for {agreed.op.name} of {agreed.dtype.name}, which is not defined"
        )
    return agreed


def _parse(cls: type[_M], data: bytes) -> _M:
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise MalformedFrame(f"{len(data)} bytes are not a {cls.DESCRIPTOR.name}: {error}") from None


def _require(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise MalformedFrame(f"{field} is {value}, allowed are {least} to {most}")


def _enum(field: str, cls: type[_E], value: int) -> _E:
    try:
        return cls(value)
    except ValueError:
        known = ", ".join(f"{member.value} {member.name}" for member in cls)
        raise MalformedFrame(f"{field} is {value}; this version knows {known}") from None


def _require_id(field: str, value: bytes) -> None:
    if len(value) != limits.ID_BYTES:
        raise MalformedFrame(f"{field} has {len(value)} bytes, it must have {limits.ID_BYTES}")


def _require_printable(field: str, value: str) -> None:
    # They stand in logs and on the operator's terminal, which a peer must not write lines to.
    if not value.isprintable():
        raise MalformedFrame(f"{field} is {value!r}, which has characters that cannot be printed")


def _join_from_pb(join: pb.Join) -> model.Join:
    # The version comes first: another version's limits may differ, and it must hear "version".
    if join.protocol == model.PROTOCOL_VERSION:
        _require("Join.world_size", join.world_size, 1, limits.WORLD_SIZE_MAX)
        if join.rank >= join.world_size:
            raise MalformedFrame(
                f"Join.rank is {join.rank}, it must be below the world size {join.world_size}"
            )
        _require("length of Join.job", len(join.job.encode()), 1, limits.JOB_NAME_BYTES_MAX)
        _require("length of Join.host", len(join.host.encode()), 0, limits.HOST_BYTES_MAX)
        _require("length of Join.group", len(join.group.encode()), 0, limits.GROUP_BYTES_MAX)
        _require_printable("Join.job", join.job)
        _require_printable("Join.host", join.host)
        _require_printable("Join.group", join.group)
        _require_id("Join.nonce", join.nonce)
        if join.instance or join.rank == 0:
            _require_id("Join.instance", join.instance)
        _require("Join.local_size", join.local_size, 0, limits.WORLD_SIZE_MAX)
        _require("Join.credit_bytes", join.credit_bytes, limits.CHUNK_BYTES_MIN, limits.CREDIT_BYTES_MAX)
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
    )


def _welcome_from_pb(welcome: pb.Welcome) -> model.Welcome:
    _require_id("Welcome.incarnation", welcome.incarnation)
    _require("Welcome.credit_bytes", welcome.credit_bytes, 1, limits.CREDIT_BYTES_MAX)
    _require("Welcome.data_port", welcome.data_port, 0, limits.PORT_MAX)
    if welcome.data_port:
        _require(
            "length of Welcome.data_key", len(welcome.data_key), limits.DATA_KEY_BYTES, limits.DATA_KEY_BYTES
        )
    _require("number of Welcome.siblings", len(welcome.siblings), 0, limits.SIBLINGS_MAX)
    for port in welcome.siblings:
        _require("Welcome.siblings", port, 1, limits.PORT_MAX)
    return model.Welcome(
        welcome.incarnation,
        welcome.credit_bytes,
        welcome.data_port,
        welcome.data_key,
        tuple(welcome.siblings),
    )


def _waiting_from_pb(waiting: pb.Waiting) -> model.Waiting:
    _require("number of Waiting.missing", len(waiting.missing), 0, limits.WAITING_RANKS_MAX)
    _require("Waiting.count", waiting.count, len(waiting.missing), limits.WORLD_SIZE_MAX)
    if not 0 <= waiting.waited_s < math.inf:  # nor NaN
        raise MalformedFrame(f"Waiting.waited_s is {waiting.waited_s}, allowed are seconds from 0")
    missing = tuple(map(_peer_from_pb, waiting.missing))
    return model.Waiting(waiting.seq, waiting.chunk, waiting.waited_s, waiting.count, missing, waiting.epoch)


def _push_from_pb(push: pb.Push, payload: memoryview) -> model.Push:
    _require("length of Push.payload", payload.nbytes, 0, limits.CHUNK_BYTES_MAX)
    agreed = collective(
        push.collective.op, push.collective.dtype, push.collective.numel, push.collective.fingerprint
    )
    crc = push.crc32c if push.HasField("crc32c") else None
    return model.Push(push.epoch, push.seq, push.chunk, agreed, push.held, payload, crc)


def _result_from_pb(result: pb.Result, payload: memoryview) -> model.Result:
    _require("length of Result.payload", payload.nbytes, 0, limits.CHUNK_BYTES_MAX)
    crc = result.crc32c if result.HasField("crc32c") else None
    return model.Result(result.epoch, result.seq, result.chunk, result.minimum, payload, crc)


def _configuration_to_pb(configuration: model.Configuration) -> pb.Configuration:
    return pb.Configuration(
        instance=configuration.instance,
        epoch=configuration.epoch,
        chunk_bytes=configuration.chunk_bytes,
        members=[
            pb.Member(address=member.address, incarnation=member.incarnation, weight=member.weight)
            for member in configuration.members
        ],
        checksums=configuration.checksums,
    )


def _configuration_from_pb(message: pb.Configuration) -> model.Configuration:
    _require_id("Configuration.instance", message.instance)
    _require("Configuration.epoch", message.epoch, 1, limits.EPOCH_MAX)
    _require("Configuration.chunk_bytes", message.chunk_bytes, limits.CHUNK_BYTES_MIN, limits.CHUNK_BYTES_MAX)
    if message.chunk_bytes % limits.CHUNK_BYTES_MULTIPLE:
        raise MalformedFrame(
            f"Configuration.chunk_bytes is {message.chunk_bytes}, it must be a multiple of "
            f"{limits.CHUNK_BYTES_MULTIPLE}"
        )
    _require("number of Configuration.members", len(message.members), 1, limits.MEMBERS_MAX)
    for member in message.members:
        _require("length of Member.address", len(member.address.encode()), 1, limits.HOST_BYTES_MAX)
        _require_id("Member.incarnation", member.incarnation)
        _require("Member.weight", member.weight, 1, limits.WEIGHT_MAX)
    if len({member.incarnation for member in message.members}) != len(message.members):
        raise MalformedFrame("Configuration.members names a reducer twice")
    members = (model.Member(member.address, member.incarnation, member.weight) for member in message.members)
    return model.Configuration(
        message.instance, message.epoch, message.chunk_bytes, tuple(members), message.checksums
    )


def _peer_to_pb(peer: model.Peer) -> pb.Peer:
    return pb.Peer(
        rank=peer.rank,
        nonce=peer.nonce,
        host=peer.host,
        presence=cast(pb.Presence, peer.presence),
        streams=peer.streams,
    )


def _peer_from_pb(peer: pb.Peer) -> model.Peer:
    _require("Peer.rank", peer.rank, 0, limits.WORLD_SIZE_MAX - 1)
    _require_id("Peer.nonce", peer.nonce)
    _require("length of Peer.host", len(peer.host.encode()), 0, limits.HOST_BYTES_MAX)
    presence = _enum("Peer.presence", model.Presence, peer.presence)
    return model.Peer(peer.rank, peer.nonce, peer.host, presence, peer.streams)


def _abort_to_pb(abort: model.Abort) -> pb.Abort:
    return pb.Abort(code=cast(pb.ErrorCode, abort.code), message=_text(abort.message))


def _text(message: str) -> str:
    """Cut to the limit; what is no text is replaced, an error about bad bytes must get through."""
    return message[: limits.MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode()


def _abort_from_pb(abort: pb.Abort) -> model.Abort:
    return model.Abort(abort.code, abort.message[: limits.MESSAGE_CHARS_MAX])
