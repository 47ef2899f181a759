"""Encode Push and Result frames by hand, because the generated classes copy a payload twice each way.

The encoding is the schema's own. The generated classes encode the small fields; only the tag and the
length of `payload`, and of the message around it, are written here. Decoding walks the fields
(https://protobuf.dev/programming-guides/encoding) and returns the payload as a view of the received
bytes. tests/unit/reduction/wire/test_wire.py compares both with the generated classes.
"""

from __future__ import annotations

from reduction.limits import FRAME_FIELDS_MAX

_LENGTH_DELIMITED = 2
_PAYLOAD_FIELD = 15
_PAYLOAD_TAG = bytes([_PAYLOAD_FIELD << 3 | _LENGTH_DELIMITED])


def join(field: int, head: bytes, payload: memoryview) -> bytes:
    """Return a frame with one field, a message.

    Args:
        field: the number of the field.
        head: all fields of the message except the payload, encoded.
        payload: the payload of the message.
    """
    # proto3 leaves out a payload of zero bytes.
    tail = _PAYLOAD_TAG + _varint(payload.nbytes) if payload.nbytes else b""
    size = _varint(len(head) + len(tail) + payload.nbytes)
    return b"".join((bytes([field << 3 | _LENGTH_DELIMITED]), size, head, tail, payload))


def split(data: bytes, field: int) -> tuple[bytes, memoryview] | None:
    """Return (fields other than payload, payload) of a frame that consists only of `field`.

    Return None for any other frame. Also return None for damaged bytes, which the generated parser
    reports best, and for more than FRAME_FIELDS_MAX fields, which that parser walks faster.
    """
    if not data or data[0] != field << 3 | _LENGTH_DELIMITED:
        return None
    try:
        size, position = _read_varint(data, 1)
        if position + size != len(data):
            return None
        head: list[bytes] = []
        payload = memoryview(b"")
        for _ in range(FRAME_FIELDS_MAX + 1):
            if position >= len(data):
                return b"".join(head), payload
            start = position
            key, position = _read_varint(data, position)
            match key & 7:
                case 0:
                    _, position = _read_varint(data, position)
                case 1:
                    position += 8
                case 2:
                    size, body = _read_varint(data, position)
                    position = body + size
                    if key >> 3 == _PAYLOAD_FIELD:
                        if position > len(data):
                            return None
                        payload = memoryview(data)[body:position]
                        continue
                case 5:
                    position += 4
                case _:
                    return None
            head.append(data[start:position])
    except IndexError:  # a varint runs past the end; the generated parser reports it
        return None
    return None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError
