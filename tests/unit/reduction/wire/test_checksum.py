"""Checksums of pushes and results."""

from dataclasses import replace

import pytest
from reduction.errors import DataCorrupted
from reduction.model import Collective, DType, Push, ReduceOp, Result
from reduction.wire import checksum

SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
DATA = memoryview(b"twelve bytes")
PUSH = Push(1, 2, 3, SUM, 4, DATA, checksum.of_push(1, 2, 3, 4, SUM, DATA))
RESULT = Result(1, 2, 3, 4, DATA, checksum.of_result(1, 2, 3, 4, DATA))


def test_the_polynomial_is_castagnolis():
    # RFC 3720, B.4: 32 bytes of zeros; here the last 4 of 28 + 4 bytes are the payload.
    assert checksum.of_result(0, 0, 0, 0, memoryview(bytes(4))) == 0x8A9136AA


@pytest.mark.parametrize("whole", [PUSH, RESULT], ids=["Push", "Result"])
def test_intact_frames_pass_and_frames_damaged_anywhere_do_not(whole):
    checksum.check(whole)
    checksum.check(replace(whole, payload=memoryview(bytearray(DATA))))  # writable memory
    mark = "held" if whole is PUSH else "minimum"
    damaged = [{name: 9} for name in ("epoch", "seq", "chunk", mark)] + [{"payload": DATA[:0]}]
    for bit in range(8 * len(DATA)):
        data = bytearray(DATA)
        data[bit // 8] ^= 1 << bit % 8
        damaged.append({"payload": memoryview(data)})
    if whole is PUSH:
        others = {"op": ReduceOp.AVG}, {"dtype": DType.INT32}, {"numel": 4}, {"fingerprint": 8}
        damaged += [{"collective": replace(SUM, **other)} for other in others]
    for changes in damaged:
        with pytest.raises(DataCorrupted):
            checksum.check(replace(whole, **changes))


def test_a_missing_checksum_counts_as_damage_and_the_error_names_the_frame():
    with pytest.raises(DataCorrupted) as caught:
        checksum.check(replace(PUSH, crc32c=None))
    assert str(caught.value).startswith(
        "Push of chunk 3 of collective 2, 12 bytes, arrived damaged: its checksum is none, but its content has "
    )
