"""End-to-end checksums of pushes and results: CRC-32C over their fields and payload.

TCP's own 16 bits let one damaged segment in tens of thousands pass (Stone and Partridge, "When the CRC and TCP Checksum
Disagree", SIGCOMM 2000), and do not cover damage inside a host. CRC-32C is one instruction on most processors.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from reduction.errors import DataCorrupted
from reduction.model import Collective, Push, Result

#: Epoch, seq, `held` or `minimum`, and chunk.
_CHUNK = struct.Struct("<QQQI")
#: Op, dtype, numel and fingerprint.
_COLLECTIVE = struct.Struct("<BBQQ")


def of_push(epoch: int, seq: int, chunk: int, held: int, collective: Collective, payload: memoryview) -> int:
    """Return the checksum of a Push with these fields."""
    head = _COLLECTIVE.pack(collective.op, collective.dtype, collective.numel, collective.fingerprint)
    return _crc(_CHUNK.pack(epoch, seq, held, chunk) + head, payload)


def of_result(epoch: int, seq: int, chunk: int, minimum: int, payload: memoryview) -> int:
    """Return the checksum of a Result with these fields."""
    return _crc(_CHUNK.pack(epoch, seq, minimum, chunk), payload)


def check(frame: Push | Result) -> None:
    """Compare a frame with its checksum.

    Raises:
        DataCorrupted: the frame has no checksum, or a wrong one.
    """
    chunk = frame.epoch, frame.seq, frame.chunk
    if isinstance(frame, Push):
        crc = of_push(*chunk, frame.held, frame.collective, frame.payload)
    else:
        crc = of_result(*chunk, frame.minimum, frame.payload)
    if crc != frame.crc32c:
        seen = "none" if frame.crc32c is None else f"{frame.crc32c:08x}"
        raise DataCorrupted(
            f"{type(frame).__name__} of chunk {frame.chunk} of collective {frame.seq}, {frame.payload.nbytes} bytes, "
            f"arrived damaged: its checksum is {seen}, but its content has {crc:08x}"
        )


def _crc(head: bytes, payload: memoryview) -> int:
    # The last argument keeps the GIL. The checksum takes 5 us per 64 KiB, and getting the GIL back
    # from a training loop in pure Python can take 5 ms.
    return crc32c(payload, crc32c(head, 0, 0), 0)
