"""The arithmetic against torch, bit for bit: float32 accumulation in rank order and one rounding."""

import numpy as np
import pytest
import torch
from reduction.model import DType, ReduceOp

from reducer import kernels

BLOCK = kernels._BLOCK
FLOATS = [DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16]
INTS = [DType.INT32, DType.INT64]
SIZES = [1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]
#: Lower halves of a float32 that decide how it is rounded to its upper half.
TAILS = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
INF = float("inf")
NAN = float("nan")


def torch_dtype(dtype):
    return getattr(torch, dtype.name.lower())


def payload_of(tensor):
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def reduced(rows, dtype, op):
    """Let the kernels reduce the rows; return a tensor."""
    accumulation = kernels.accumulation_dtype(dtype)
    accumulator = np.empty(rows[0].numel(), accumulation)
    kernels.start(accumulator, payload_of(rows[0]), dtype)
    for row in rows[1:]:
        kernels.add(accumulator, payload_of(row), dtype)
    rounds = dtype.itemsize != accumulation.itemsize
    out = np.empty(rows[0].numel() * dtype.itemsize, np.uint8) if rounds else None
    payload = kernels.finish(accumulator, out, dtype, op, len(rows))
    assert payload.nbytes == rows[0].numel() * dtype.itemsize
    return torch.frombuffer(bytearray(payload) or bytearray(8), dtype=torch_dtype(dtype))[: rows[0].numel()]


def expected(rows, op):
    """What torch makes of it: rank order, wide accumulation, one rounding after the division."""
    dtype = rows[0].dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total += row.to(wide)
    if op is ReduceOp.AVG:
        total /= len(rows)
    return total.to(dtype)


def assert_same_bits(ours, theirs):
    """Compare bits; all NaNs count as the same."""
    assert ours.dtype == theirs.dtype
    if ours.is_floating_point():
        assert torch.equal(ours.isnan(), theirs.isnan())
        ours, theirs = ours.where(~ours.isnan(), 1.0), theirs.where(~theirs.isnan(), 1.0)
    assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def random_rows(dtype, size, world_size):
    generator = torch.Generator().manual_seed(size * 31 + world_size)
    if dtype.is_integer:
        limits = torch.iinfo(torch_dtype(dtype))
        return [
            torch.randint(limits.min, limits.max, (size,), dtype=torch_dtype(dtype), generator=generator)
            for _ in range(world_size)
        ]
    rows = torch.randn(world_size, size, generator=generator, dtype=torch.float64)
    # Magnitudes far apart, so that order and width of the accumulation show in the bits.
    rows *= 10.0 ** torch.randint(-3, 4, (world_size, size), generator=generator)
    return list(rows.to(torch_dtype(dtype)))


def all_patterns():
    """Return all 65536 bit patterns of a 16-bit type."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


def float32_patterns():
    """Return every upper half of a float32 with every tail that matters: 12 blocks of work."""
    bits = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = torch.cat([bits | tail for tail in TAILS])
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


# ---- against torch ----


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype, op, size, world_size):
    rows = random_rows(dtype, size, world_size)
    assert_same_bits(reduced(rows, dtype, op), expected(rows, op))


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap_as_in_torch(dtype, size, world_size):
    rows = random_rows(dtype, size, world_size)
    assert_same_bits(reduced(rows, dtype, ReduceOp.SUM), expected(rows, ReduceOp.SUM))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("op", ReduceOp)
def test_empty(dtype, op):
    rows = [torch.empty(0, dtype=torch_dtype(dtype))] * 3
    assert reduced(rows, dtype, op).numel() == 0


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype, op):
    kind = torch.finfo(torch_dtype(dtype))
    subnormal = kind.smallest_normal / 4
    values = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, kind.max, kind.min, kind.tiny, subnormal, -subnormal]
    pairs = torch.tensor([(left, right) for left in values for right in values], dtype=torch_dtype(dtype))
    rows = [pairs[:, 0].contiguous(), pairs[:, 1].contiguous()]
    assert_same_bits(reduced(rows, dtype, op), expected(rows, op))


def test_negative_zero_stays_negative():
    for dtype in FLOATS:
        zeros = [torch.tensor([-0.0], dtype=torch_dtype(dtype))] * 2
        assert reduced(zeros, dtype, ReduceOp.SUM).signbit().item()


# ---- every 16-bit pattern, every rounding ----


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_pattern_is_widened_and_comes_back(dtype):
    patterns = all_patterns().view(torch_dtype(dtype))
    assert_same_bits(reduced([patterns], dtype, ReduceOp.SUM), patterns)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_pattern_is_added(dtype):
    patterns = all_patterns().view(torch_dtype(dtype))
    rows = [patterns, patterns.flip(0), patterns.roll(1)]
    assert_same_bits(reduced(rows, dtype, ReduceOp.SUM), expected(rows, ReduceOp.SUM))


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_rounding(dtype):
    values = float32_patterns()
    out = np.empty(values.numel() * 2, np.uint8)
    payload = kernels.finish(values.numpy().copy(), out, dtype, ReduceOp.SUM, 2)
    ours = torch.frombuffer(bytearray(payload), dtype=torch_dtype(dtype))
    assert_same_bits(ours, values.to(torch_dtype(dtype)))


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to even, down
        (0x3F818000, 0x3F82),  # a tie goes to even, up
        (0x3F808001, 0x3F81),  # just above a tie
        (0x7F7F8000, 0x7F80),  # the largest values round to infinity
        (0xFF7FFFFF, 0xFF80),
        (0x7F800000, 0x7F80),  # infinity stays
        (0x00008000, 0x0000),  # subnormals round like all others
        (0x0000FFFF, 0x0001),
        (0x807F8000, 0x8080),
        (0x7F800001, 0x7FC0),  # a NaN whose payload would be cut to infinity
        (0x7FFFFFFF, 0x7FC0),  # a NaN whose payload would carry over to -0
        (0xFFFFFFFF, 0x7FC0),  # a NaN that would wrap around to 0
    ],
)
def test_rounding_to_bfloat16_by_hand(bits, rounded):
    out = np.empty(2, np.uint8)
    accumulator = np.array([bits], np.uint32).view(np.float32)
    payload = kernels.finish(accumulator, out, DType.BFLOAT16, ReduceOp.SUM, 1)
    assert int.from_bytes(payload, "little") == rounded


# ---- what the wide accumulation is for ----


def test_bfloat16_is_rounded_once_and_not_at_every_step():
    rows = [torch.tensor([value], dtype=torch.bfloat16) for value in (1.0, 2**-8, 2**-8)]
    assert reduced(rows, DType.BFLOAT16, ReduceOp.SUM).item() == 1 + 2**-7
    assert (rows[0] + rows[1] + rows[2]).item() == 1.0, "what a ring in bfloat16 makes of it"


def test_float16_overflows_only_in_the_result():
    rows = [torch.tensor([60000.0], dtype=torch.float16)] * 2
    assert reduced(rows, DType.FLOAT16, ReduceOp.SUM).item() == INF
    assert reduced(rows, DType.FLOAT16, ReduceOp.AVG).item() == rows[0].item()
    rows.append(torch.tensor([-60000.0], dtype=torch.float16))
    assert reduced(rows, DType.FLOAT16, ReduceOp.SUM).item() == rows[0].item()


def test_the_order_of_the_fold_is_the_order_of_the_calls():
    big, small = torch.tensor([2.0**24]), torch.tensor([1.0])
    assert reduced([big, small, small], DType.FLOAT32, ReduceOp.SUM).item() == 2.0**24
    assert reduced([small, small, big], DType.FLOAT32, ReduceOp.SUM).item() == 2.0**24 + 2


# ---- memory ----


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("offset", range(1, 8))
def test_payloads_need_no_alignment(dtype, offset):
    # They are views into received frames.
    rows = random_rows(dtype, 100, 2)
    frames = [bytes(offset) + bytes(payload_of(row)) for row in rows]
    accumulator = np.empty(100, kernels.accumulation_dtype(dtype))
    kernels.start(accumulator, memoryview(frames[0])[offset:], dtype)
    kernels.add(accumulator, memoryview(frames[1])[offset:], dtype)
    out = np.empty(100 * dtype.itemsize, np.uint8) if accumulator.itemsize != dtype.itemsize else None
    payload = kernels.finish(accumulator, out, dtype, ReduceOp.SUM, 2)
    ours = torch.frombuffer(bytearray(payload), dtype=torch_dtype(dtype))
    assert_same_bits(ours, expected(rows, ReduceOp.SUM))


def test_the_accumulator_is_a_copy_of_the_first_payload():
    memory = bytearray(torch.tensor([1.0, 2.0]).numpy().tobytes())
    accumulator = np.empty(2, np.float32)
    kernels.start(accumulator, memoryview(memory), DType.FLOAT32)
    memory[:] = bytes(8)
    assert accumulator.tolist() == [1.0, 2.0]


def test_a_result_that_needs_no_rounding_is_the_accumulator_itself():
    accumulator = np.array([1.0, 2.0], np.float32)
    payload = kernels.finish(accumulator, None, DType.FLOAT32, ReduceOp.SUM, 2)
    accumulator[0] = 7.0
    assert np.frombuffer(payload, np.float32).tolist() == [7.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (DType.FLOAT32, "float32"),
        (DType.FLOAT64, "float64"),
        (DType.BFLOAT16, "float32"),
        (DType.FLOAT16, "float32"),
        (DType.INT32, "int32"),
        (DType.INT64, "int64"),
    ],
)
def test_accumulation_dtypes(dtype, name):
    assert kernels.accumulation_dtype(dtype) == np.dtype(name)
