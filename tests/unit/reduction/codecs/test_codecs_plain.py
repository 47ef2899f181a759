"""The arithmetic against torch, bit for bit: wide accumulation in rank order and one rounding."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from reduction.codecs import BLOCK_CODECS, CODECS, half
from reduction.codecs.average import scale
from reduction.model import DType, ReduceOp

BLOCK = half.BATCH_ELEMENTS
FLOATS = [DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16]
INTS = [DType.INT32, DType.INT64, DType.UINT8, DType.INT8]
DTYPES = [*FLOATS, *INTS, DType.BOOL]
#: Elements and ranks.
SHAPES = [
    (0, 3),
    (1, 2),
    (1000, 1),
    (1000, 3),
    (BLOCK - 1, 2),
    (BLOCK, 2),
    (BLOCK + 1, 2),
    (3 * BLOCK + 5, 5),
]
#: Lower halves of a float32 that decide how it is rounded to its upper half.
TAILS = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
INF = float("inf")
FLOAT32_MAX = torch.finfo(torch.float32).max
NAN = float("nan")


def ops(dtypes):
    """Return all pairs that a reducer accepts."""
    return [(dtype, op) for dtype in dtypes for op in ReduceOp if dtype.allows(op)]


def torch_dtype(dtype):
    return getattr(torch, dtype.name.lower())


def payload_of(tensor):
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def reduced_payloads(payloads, dtype, op):
    """Reduce as a reducer does; return a tensor."""
    codec = CODECS[dtype]
    accumulator = np.empty(codec.elements(payloads[0].nbytes), codec.accumulation)
    codec.start(accumulator, payloads[0])
    for payload in payloads[1:]:
        codec.add(accumulator, payload, op)
    scale(accumulator, op, len(payloads))
    return result_of(accumulator, dtype)


def result_of(accumulator, dtype):
    codec, nbytes = CODECS[dtype], accumulator.size * dtype.itemsize
    payload = codec.finish(accumulator, None if codec.is_plain else memoryview(bytearray(nbytes)))
    assert payload.nbytes == nbytes
    return torch.frombuffer(bytearray(payload) or bytearray(8), dtype=torch_dtype(dtype))[: accumulator.size]


def reduced(rows, dtype, op):
    return reduced_payloads([payload_of(row) for row in rows], dtype, op)


TORCH = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
}


def expected(rows, op):
    """Return torch's result: rank order, wide accumulation, one rounding after the division."""
    dtype = rows[0].dtype
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total = TORCH[op](total, row.to(wide))
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
    if dtype is DType.BOOL:
        return list(torch.randint(0, 2, (world_size, size), generator=generator).bool())
    if dtype in INTS:
        limits = torch.iinfo(torch_dtype(dtype))
        return [
            torch.randint(limits.min, limits.max, (size,), dtype=torch_dtype(dtype), generator=generator)
            for _ in range(world_size)
        ]
    rows = torch.randn(world_size, size, generator=generator, dtype=torch.float64)
    # Magnitudes far apart, so that the bits show the order and width of the accumulation.
    rows *= 10.0 ** torch.randint(-3, 4, (world_size, size), generator=generator)
    return list(rows.to(torch_dtype(dtype)))


def all_patterns():
    """Return all 65536 bit patterns of a 16-bit type."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


def finite_float16():
    """Return all finite float16 values. Infinities and NaNs would send their block down another code path."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    return patterns[patterns & 0x7C00 != 0x7C00].view(np.float16)


def float32_patterns():
    """Return every upper half of a float32 with every tail that matters: 6 blocks of work."""
    bits = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = torch.cat([bits | tail for tail in TAILS])
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


# ---- against torch ----


@pytest.mark.parametrize(("size", "world_size"), SHAPES)
@pytest.mark.parametrize(("dtype", "op"), ops(DTYPES))
def test_results_match_torch(dtype, op, size, world_size):
    """Integers wrap around; of bools, sum and maximum are OR, product and minimum AND."""
    rows = random_rows(dtype, size, world_size)
    assert_same_bits(reduced(rows, dtype, op), expected(rows, op))


def test_many_bools_do_not_wrap_around():
    rows = [torch.tensor([True])] * 256
    assert reduced(rows, DType.BOOL, ReduceOp.SUM).view(torch.uint8).item() == 1


def special_values(dtype):
    """Return two rows with all pairs."""
    kind = torch.finfo(torch_dtype(dtype))
    subnormal = kind.smallest_normal / 4
    values = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, kind.max, kind.min, kind.tiny, subnormal, -subnormal]
    pairs = torch.tensor([(left, right) for left in values for right in values], dtype=torch_dtype(dtype))
    return [pairs[:, 0].contiguous(), pairs[:, 1].contiguous()]


@pytest.mark.parametrize(("dtype", "op"), ops(FLOATS))
def test_special_values_match_torch(dtype, op):
    rows = special_values(dtype)
    ours, theirs = reduced(rows, dtype, op), expected(rows, op)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        # In torch, which of 0 and -0 is less depends on their positions. Adding 0 makes both the same.
        ours, theirs = ours + 0.0, theirs + 0.0
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [0.0, -0.0])
def test_min_and_max_of_signed_zeros_do_not_depend_on_position(dtype, op, sign):
    # The bits of a result do not depend on the grid.
    rows = [
        torch.full((67,), sign, dtype=torch_dtype(dtype)),
        torch.full((67,), -sign, dtype=torch_dtype(dtype)),
    ]
    assert len(set(reduced(rows, dtype, op).signbit().tolist())) == 1


def test_overflow_raises_no_warning():
    code = """
import numpy as np
from reduction.codecs import CODECS
from reduction.codecs.average import scale
from reduction.model import DType, ReduceOp

largest = np.full(4, np.finfo(np.float32).max, np.float32)
for op in ReduceOp:
    CODECS[DType.FLOAT32].add(largest.copy(), largest, op)
infinite = np.full(1, np.inf, np.float32)
CODECS[DType.FLOAT32].add(infinite, -infinite, ReduceOp.SUM)
CODECS[DType.FLOAT16].finish(largest, memoryview(bytearray(8)))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ---- every 16-bit pattern, every rounding ----


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_pattern_survives_widening_and_rounding(dtype):
    patterns = all_patterns().view(torch_dtype(dtype))
    assert_same_bits(reduced([patterns], dtype, ReduceOp.SUM), patterns)


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_pattern_is_combined(dtype, op):
    patterns = all_patterns().view(torch_dtype(dtype))
    rows = [patterns, patterns.flip(0), patterns.roll(1)]
    assert_same_bits(reduced(rows, dtype, op), expected(rows, op))


def test_every_finite_float16_is_widened():
    values = finite_float16()
    accumulator = np.empty(len(values), np.float32)
    CODECS[DType.FLOAT16].start(accumulator, values.view(np.uint8).data)
    assert accumulator.tobytes() == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("special", [0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7E00, 0xFFFF])
def test_infinities_and_nans_of_float16_keep_all_bits(special):
    patterns = np.array([0x0001, special, 0x8000], np.uint16)
    accumulator = np.empty(3, np.float32)
    CODECS[DType.FLOAT16].start(accumulator, patterns.view(np.uint8).data)
    assert accumulator.tobytes() == patterns.view(np.float16).astype(np.float32).tobytes()
    assert result_of(accumulator, DType.FLOAT16).view(torch.uint16).tolist() == patterns.tolist()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_rounding_matches_torch(dtype):
    values = float32_patterns()
    assert_same_bits(result_of(values.numpy().copy(), dtype), values.to(torch_dtype(dtype)))


@pytest.mark.parametrize("nan", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_any_nan_becomes_the_bfloat16_nan_at_any_position(nan):
    for place in range(67):
        accumulator = np.full(67, INF, np.float32)
        accumulator.view(np.uint32)[place] = nan
        bits = result_of(accumulator, DType.BFLOAT16).view(torch.uint16).tolist()
        assert bits == [0x7FC0 if index == place else 0x7F80 for index in range(67)]


@pytest.mark.parametrize(
    ("nan", "rounded"),
    [
        (0x7F800001, 0x7C01),  # a payload that would be truncated to infinity
        (0xFFFFFFFF, 0xFFFF),  # others keep their sign and the upper part of their payload
        (0x7FC02000, 0x7E01),
    ],
)
def test_a_nan_remains_a_nan_in_float16(nan, rounded):
    accumulator = np.array([nan, 0], np.uint32).view(np.float32)
    assert result_of(accumulator, DType.FLOAT16).view(torch.uint16).tolist() == [rounded, 0]


def test_rounding_to_every_float16_and_at_every_tie_matches_numpy():
    values = np.sort(finite_float16().astype(np.float32))
    near = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    near = np.concatenate([np.nextafter(near, np.float32(-INF)), near, np.nextafter(near, np.float32(INF))])
    tie = np.float32(65520)  # with infinity
    more = [tie, -tie, np.nextafter(tie, np.float32(0)), FLOAT32_MAX, -INF, -0.0, 1e-45, -1e-45]
    near = np.concatenate([near, np.float32(more)])
    with np.errstate(over="ignore"):
        expected_bits = near.astype(np.float16).view(np.uint16)
    assert result_of(near, DType.FLOAT16).view(torch.uint16).tolist() == expected_bits.tolist()


# ---- memory ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", range(1, 8))
def test_payloads_need_no_alignment(dtype, offset):
    # The payloads are views into received frames.
    rows = random_rows(dtype, 100, 2)
    frames = [bytes(offset) + bytes(payload_of(row)) for row in rows]
    ours = reduced_payloads([memoryview(frame)[offset:] for frame in frames], dtype, ReduceOp.SUM)
    assert_same_bits(ours, expected(rows, ReduceOp.SUM))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_accumulator_is_a_copy_of_the_first_payload(dtype):
    codec, memory = CODECS[dtype], bytearray(payload_of(random_rows(dtype, 4, 1)[0]))
    accumulator = np.empty(4, codec.accumulation)
    codec.start(accumulator, memoryview(memory))
    before = accumulator.tobytes()
    memory[:] = bytes(byte ^ 255 for byte in memory)
    assert accumulator.tobytes() == before


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if CODECS[dtype].is_plain])
def test_a_result_that_needs_no_rounding_is_the_accumulator_itself(dtype):
    accumulator = np.zeros(2, CODECS[dtype].accumulation)
    payload = CODECS[dtype].finish(accumulator, None)
    accumulator[0] = 1
    assert np.frombuffer(payload, accumulator.dtype).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if CODECS[dtype].is_plain])
def test_plain_payloads_can_serve_as_accumulator(dtype):
    # So the reducer may add to received memory.
    row = random_rows(dtype, 100, 1)[0]
    assert np.frombuffer(payload_of(row), CODECS[dtype].accumulation).tolist() == row.tolist()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_a_rounded_result_is_in_the_memory_given(dtype):
    out = memoryview(bytearray(4))
    payload = CODECS[dtype].finish(np.ones(2, np.float32), out)
    assert payload.obj is out.obj
    assert torch.frombuffer(out, dtype=torch_dtype(dtype)).tolist() == [1.0, 1.0]


def test_there_is_a_codec_for_every_dtype():
    assert {dtype: codec.dtype for dtype, codec in CODECS.items()} == {dtype: dtype for dtype in DType}
    assert set(CODECS) - set(BLOCK_CODECS) == set(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bytes_of_a_plain_dtype_pass_the_check(dtype):
    CODECS[dtype].check(memoryview(bytes(range(256))))
