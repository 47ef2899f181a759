"""Messages of the TCP plane: a fixed header, and `length` bytes of payload.

The header has HEADER_BYTES, little-endian. A Push or Result has its payload after the header and all
other fields in it. Every other frame is itself the payload, encoded as in the schema (`reduction.wire`).
The header ends with a checksum of itself, so that corruption is found before any field is trusted, above
all the length. It also has a checksum of the frame in the payload; for a Push or Result only if the
configuration requires it. A connection begins with PREAMBLE and the key of the offer. The other side
answers PREAMBLE, and with another PREAMBLE the stream moves (proto/README.md, "Data planes").
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from reduction.errors import DataCorrupted, MalformedFrame
from reduction.limits import CHUNK_BYTES_MAX, REDUCER_CONTROL_BYTES_MAX
from reduction.model import Push, Result

PREAMBLE = b"RDSTCP2\n"
HEADER_BYTES = 60

CONTROL, PUSH, RESULT = 1, 2, 3
#: Only between processes on one host. SHOW announces a region, and its descriptor comes with the header.
#: HIDE means that a region has ended. COUNTER has the place of 8 bytes in which the sender counts the
#: results that it has copied.
SHOW, HIDE, COUNTER = 4, 5, 6
HAS_CRC = 1
#: The header is followed not by the payload, but by its place in memory that both sides share.
IS_PLACE = 2
_FIELDS = struct.Struct("<BBBBIIIQQQQQ")
_SEAL = struct.Struct("<I")
assert _FIELDS.size + _SEAL.size == HEADER_BYTES


class Header(NamedTuple):
    """The beginning of every message. Fields that its kind does not use are 0."""

    kind: int
    op: int
    dtype: int
    #: HAS_CRC if `crc` is a checksum of the payload, and IS_PLACE, in any combination.
    flags: int
    length: int
    chunk: int
    #: Undefined unless `flags` has HAS_CRC.
    crc: int
    epoch: int
    seq: int
    #: `held` of a Push, or `minimum` of a Result.
    held_or_minimum: int
    numel: int
    fingerprint: int

    @property
    def checksum(self) -> int | None:
        """The checksum of a Push or Result; None if it has none."""
        return self.crc if self.flags & HAS_CRC else None


def pack_header(*fields: int) -> bytes:
    """Return the bytes of a header with the fields of `Header`."""
    head = _FIELDS.pack(*fields)
    return head + _SEAL.pack(crc32c(head, 0, 0))


def parse_header(data: bytes | memoryview) -> Header:
    """Decode a header of HEADER_BYTES.

    Raises:
        DataCorrupted: the bytes are not those that the peer sent.
    """
    head = data[: _FIELDS.size]
    (seal,) = _SEAL.unpack_from(data, _FIELDS.size)
    # The last argument keeps the GIL, because getting it back takes longer than this checksum.
    if crc32c(head, 0, 0) != seal:
        raise DataCorrupted("a header arrived damaged: its checksum does not match")
    return Header._make(_FIELDS.unpack(head))


def push_header(push: Push, place_bytes: int = 0) -> bytes:
    """Return the header of a Push, followed by its payload, or by a place of `place_bytes` bytes if not 0."""
    collective = push.collective
    return pack_header(
        PUSH,
        collective.op,
        collective.dtype,
        (0 if push.crc32c is None else HAS_CRC) | (IS_PLACE if place_bytes else 0),
        place_bytes or push.payload.nbytes,
        push.chunk,
        push.crc32c or 0,
        push.epoch,
        push.seq,
        push.held,
        collective.numel,
        collective.fingerprint,
    )


def result_header(result: Result, place_bytes: int = 0) -> bytes:
    """Return the header of a Result, as `push_header` does."""
    return pack_header(
        RESULT,
        0,
        0,
        (0 if result.crc32c is None else HAS_CRC) | (IS_PLACE if place_bytes else 0),
        place_bytes or result.payload.nbytes,
        result.chunk,
        result.crc32c or 0,
        result.epoch,
        result.seq,
        result.minimum,
        0,
        0,
    )


def control_header(frame: bytes | memoryview) -> bytes:
    """Return the header of a frame other than Push and Result, followed by the frame as in the schema."""
    return pack_header(CONTROL, 0, 0, HAS_CRC, len(frame), 0, crc32c(frame, 0, 0), 0, 0, 0, 0, 0)


def region_header(kind: int, number: int) -> bytes:
    """Return a SHOW or a HIDE of a region."""
    return pack_header(kind, 0, 0, 0, 0, number, 0, 0, 0, 0, 0, 0)


def counter_header(place_bytes: int) -> bytes:
    """Return the header of a COUNTER, followed by its place."""
    return pack_header(COUNTER, 0, 0, IS_PLACE, place_bytes, 0, 0, 0, 0, 0, 0, 0)


def check_payload(header: Header, frame: str) -> None:
    """Raise MalformedFrame if the payload of a Push or Result is longer than any chunk."""
    if header.length > CHUNK_BYTES_MAX:
        raise MalformedFrame(f"length of {frame}.payload is {header.length}; allowed: 0 to {CHUNK_BYTES_MAX}")


def control_payload(header: Header) -> memoryview:
    """Return memory for a frame that is neither Push nor Result.

    Raises:
        MalformedFrame: the frame is a Push or Result, has an unknown kind, or is too long.
    """
    if header.kind != CONTROL:
        raise MalformedFrame(f"a message of kind {header.kind}, which this side does not accept")
    if header.length > REDUCER_CONTROL_BYTES_MAX:
        raise MalformedFrame(f"a frame of {header.length} bytes; the limit is {REDUCER_CONTROL_BYTES_MAX}")
    return memoryview(bytearray(header.length))


def control_frame(header: Header, payload: memoryview) -> bytes:
    """Return a frame that is neither Push nor Result, as in the schema. A peer may send it without a checksum.

    Raises:
        DataCorrupted: the frame is not the one that the peer sent.
    """
    if header.checksum is not None and crc32c(payload, 0, 0) != header.checksum:
        raise DataCorrupted(f"a frame of {len(payload)} bytes arrived damaged: its checksum does not match")
    return bytes(payload)
