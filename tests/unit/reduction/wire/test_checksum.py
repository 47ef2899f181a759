"""Checksums of pushes and results."""

from dataclasses import replace

import pytest
from reduction.errors import DataCorrupted
from reduction.model import Collective, DType, Push, ReduceOp, Result
from reduction.wire import checksum

SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)


def push(epoch=1, seq=2, chunk=3, held=4, data=b"twelve bytes", collective=SUM, **changes):
    payload = memoryview(data)
    crc = checksum.of_push(1, 2, 3, 4, SUM, memoryview(b"twelve bytes"))
    return Push(epoch, seq, chunk, collective, held, payload, **{"crc32c": crc} | changes)


def result(epoch=1, seq=2, chunk=3, minimum=4, data=b"twelve bytes"):
    crc = checksum.of_result(1, 2, 3, 4, memoryview(b"twelve bytes"))
    return Result(epoch, seq, chunk, minimum, memoryview(data), crc)


def test_the_polynomial_is_castagnolis():
    # RFC 3720, B.4: 32 bytes of zeros; here the last 4 of 28 + 4 bytes are the payload.
    assert checksum.of_result(0, 0, 0, 0, memoryview(bytes(4))) == 0x8A9136AA


@pytest.mark.parametrize("make", [push, result])
def test_what_is_whole_passes(make):
    checksum.check(make())
    checksum.check(make(data=bytearray(b"twelve bytes")))  # memory that may be written to


@pytest.mark.parametrize("make", [push, result])
@pytest.mark.parametrize(
    "changes", [{"epoch": 2}, {"seq": 3}, {"chunk": 2}, {"data": b"twelve bytez"}, {"data": b""}]
)
def test_whatever_is_damaged_does_not(make, changes):
    with pytest.raises(DataCorrupted):
        checksum.check(make(**changes))


def test_marks_are_covered():
    for damaged in (push(held=5), result(minimum=5)):
        with pytest.raises(DataCorrupted):
            checksum.check(damaged)


@pytest.mark.parametrize(
    "changes",
    [{"op": ReduceOp.AVG}, {"dtype": DType.INT32}, {"numel": 4}, {"fingerprint": 8}],
)
def test_what_is_reduced_is_covered(changes):
    with pytest.raises(DataCorrupted):
        checksum.check(push(collective=replace(SUM, **changes)))


def test_every_single_bit_counts():
    whole = b"twelve bytes"
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataCorrupted):
            checksum.check(push(data=damaged))


def test_one_that_is_missing_counts_as_damaged_and_the_message_says_what_it_was():
    with pytest.raises(DataCorrupted) as caught:
        checksum.check(push(crc32c=None))
    assert str(caught.value).startswith(
        "Push of chunk 3 of collective 2, 12 bytes, arrived damaged: its checksum is none, its content has "
    )
