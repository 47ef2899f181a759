"""A fuzz input for targets with several streams: records with an operation, its argument and some bytes.

    u8 operation, u8 argument, u16 length (little-endian), `length` bytes

Every byte string is a script, since the last record may be cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

RECORDS_MAX = 64
_HEAD = struct.Struct("<BBH")


class Record(NamedTuple):
    """One step; each target defines the meaning of `operation`."""

    operation: int
    argument: int
    data: bytes = b""


def decode(script: bytes) -> list[Record]:
    """Return the records, at most RECORDS_MAX."""
    records: list[Record] = []
    position = 0
    while len(script) - position >= _HEAD.size and len(records) < RECORDS_MAX:
        operation, argument, length = _HEAD.unpack_from(script, position)
        position += _HEAD.size
        records.append(Record(operation, argument, script[position : position + length]))
        position += length
    return records


def encode(records: Iterable[Record]) -> bytes:
    """Return the script; data of more than 65535 bytes is cut."""
    return b"".join(
        _HEAD.pack(record.operation, record.argument, len(record.data[:0xFFFF])) + record.data[:0xFFFF]
        for record in records
    )
