"""Common parts of frames of both directions: checks of fields, and messages within messages."""

from __future__ import annotations

import enum
import math
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from reduction import limits, model
from reduction.errors import MalformedFrame
from reduction.text import printable
from reduction.v1 import reduction_pb2 as pb

_M = TypeVar("_M", bound=Message)
_E = TypeVar("_E", bound=enum.IntEnum)


def parse(cls: type[_M], data: bytes) -> _M:
    """Return a message of the schema.

    Raises:
        MalformedFrame: the bytes are not such a message.
    """
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise MalformedFrame(f"{len(data)} bytes are not a {cls.DESCRIPTOR.name}: {error}") from None


def require(field: str, value: int, least: int, most: int) -> None:
    """Check that a number is within its limits, inclusive.

    Raises:
        MalformedFrame: it is outside its limits.
    """
    if not least <= value <= most:
        raise MalformedFrame(f"{field} is {value}; allowed: {least} to {most}")


def enum_member(field: str, cls: type[_E], value: int) -> _E:
    """Return the member of an enumeration with this number.

    Raises:
        MalformedFrame: this version does not know the number.
    """
    try:
        return cls(value)
    except ValueError:
        known = ", ".join(f"{member.value} {member.name}" for member in cls)
        raise MalformedFrame(f"{field} is {value}; this version knows {known}") from None


def require_id(field: str, value: bytes) -> None:
    """Check the length of an instance, an incarnation or a nonce.

    Raises:
        MalformedFrame: it has another length.
    """
    if len(value) != limits.ID_BYTES:
        raise MalformedFrame(f"{field} has {len(value)} bytes; it must have {limits.ID_BYTES}")


def require_printable(field: str, value: str) -> None:
    """Check that a string is safe for logs and the operator's terminal.

    Raises:
        MalformedFrame: it has unprintable characters.
    """
    # A peer must not be able to forge lines there, or to move the cursor.
    if not value.isprintable():
        raise MalformedFrame(f"{field} is {value!r}, which has characters that cannot be printed")


def configuration_to_pb(configuration: model.Configuration) -> pb.Configuration:
    """Encode a configuration."""
    return pb.Configuration(
        instance=configuration.instance,
        epoch=configuration.epoch,
        chunk_bytes=configuration.chunk_bytes,
        members=[
            pb.Member(address=member.address, incarnation=member.incarnation, weight=member.weight)
            for member in configuration.members
        ],
        checksums=configuration.checksums,
        added=configuration.added,
    )


def configuration_from_pb(message: pb.Configuration) -> model.Configuration:
    """Decode and validate a configuration.

    Raises:
        MalformedFrame: a field is outside its limits.
    """
    require_id("Configuration.instance", message.instance)
    require("Configuration.epoch", message.epoch, 1, limits.EPOCH_MAX)
    require("Configuration.chunk_bytes", message.chunk_bytes, limits.CHUNK_BYTES_MIN, limits.CHUNK_BYTES_MAX)
    if message.chunk_bytes % limits.CHUNK_BYTES_MULTIPLE:
        raise MalformedFrame(
            f"Configuration.chunk_bytes is {message.chunk_bytes}; it must be a multiple of "
            f"{limits.CHUNK_BYTES_MULTIPLE}"
        )
    require("number of Configuration.members", len(message.members), 1, limits.MEMBERS_MAX)
    for member in message.members:
        require("length of Member.address", len(member.address.encode()), 1, limits.HOST_BYTES_MAX)
        require_printable("Member.address", member.address)
        require_id("Member.incarnation", member.incarnation)
        require("Member.weight", member.weight, 1, limits.WEIGHT_MAX)
    if len({member.incarnation for member in message.members}) != len(message.members):
        raise MalformedFrame("Configuration.members names a reducer twice")
    require("number of Configuration.added", len(message.added), 0, limits.ADDED_MAX)
    for address in message.added:
        require("length of Configuration.added", len(address.encode()), 1, limits.HOST_BYTES_MAX)
        require_printable("Configuration.added", address)
    members = (model.Member(member.address, member.incarnation, member.weight) for member in message.members)
    return model.Configuration(
        message.instance,
        message.epoch,
        message.chunk_bytes,
        tuple(members),
        message.checksums,
        tuple(message.added),
    )


def peer_to_pb(peer: model.Peer) -> pb.Peer:
    """Encode a rank as a reducer sees it."""
    return pb.Peer(
        rank=peer.rank,
        nonce=peer.nonce,
        host=peer.host,
        presence=cast(pb.Presence, peer.presence),
        streams=peer.streams,
        place=place_to_pb(peer.place),
        ended=peer.has_ended,
    )


def peer_from_pb(peer: pb.Peer) -> model.Peer:
    """Decode and validate a rank as a reducer sees it.

    Raises:
        MalformedFrame: a field is outside its limits.
    """
    require("Peer.rank", peer.rank, 0, limits.WORLD_SIZE_MAX - 1)
    require_id("Peer.nonce", peer.nonce)
    require("length of Peer.host", len(peer.host.encode()), 0, limits.HOST_BYTES_MAX)
    presence = enum_member("Peer.presence", model.Presence, peer.presence)
    return model.Peer(
        peer.rank,
        peer.nonce,
        printable(peer.host),
        presence,
        peer.streams,
        place_from_pb("Peer.place", peer.place),
        peer.ended,
    )


def waiting_to_pb(waiting: model.Waiting) -> pb.Waiting:
    """Encode the ranks that others wait for."""
    return pb.Waiting(
        seq=waiting.seq,
        chunk=waiting.chunk,
        waited_s=waiting.waited_s,
        count=waiting.count,
        missing=map(peer_to_pb, waiting.missing),
        epoch=waiting.epoch,
    )


def waiting_from_pb(waiting: pb.Waiting) -> model.Waiting:
    """Decode and validate the ranks that others wait for.

    Raises:
        MalformedFrame: a field is outside its limits.
    """
    require("number of Waiting.missing", len(waiting.missing), 0, limits.WAITING_RANKS_MAX)
    require("Waiting.count", waiting.count, len(waiting.missing), limits.WORLD_SIZE_MAX)
    if not 0 <= waiting.waited_s < math.inf:  # nor NaN
        raise MalformedFrame(f"Waiting.waited_s is {waiting.waited_s}; it must be 0 or more seconds")
    missing = tuple(map(peer_from_pb, waiting.missing))
    return model.Waiting(waiting.seq, waiting.chunk, waiting.waited_s, waiting.count, missing, waiting.epoch)


def place_to_pb(place: model.Place) -> pb.Place | None:
    """Encode the place of a process, or return None if it is not known."""
    return None if place == model.NOWHERE else pb.Place(host=place.host, link_mbit=place.link_mbit)


def place_from_pb(field: str, place: pb.Place) -> model.Place:
    """Decode and validate the place of a process.

    Raises:
        MalformedFrame: a field is outside its limits.
    """
    if place.host:
        require_id(f"{field}.host", place.host)
    require(f"{field}.link_mbit", place.link_mbit, 0, limits.LINK_MBIT_MAX)
    return model.Place(place.host, place.link_mbit)


def abort_to_pb(abort: model.Abort) -> pb.Abort:
    """Encode an Abort, its message cut to the limit."""
    return pb.Abort(code=cast(pb.ErrorCode, abort.code), message=_text(abort.message))


def _text(message: str) -> str:
    """Cut a message to the limit, and replace invalid text, because errors about bad bytes must get through."""
    return message[: limits.MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode()


def abort_from_pb(abort: pb.Abort) -> model.Abort:
    """Decode an Abort, its message cut to the limit."""
    return model.Abort(abort.code, abort.message[: limits.MESSAGE_CHARS_MAX])
