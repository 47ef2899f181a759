"""The lossy codecs: the amount they leave out, values that are not numbers, and malformed bytes from a peer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reduction.codecs import BLOCK_CODECS, TOPK
from reduction.codecs.half import widen
from reduction.codecs.scaled import BATCH_BLOCKS, e4m3_values
from reduction.errors import MalformedFrame
from reduction.model import DType, ReduceOp
from reduction.model.wire_sizes import SCALED_BLOCK, SCALED_BYTES, TOPK_BLOCK, TOPK_ENTRY_BYTES, TOPK_MAX

INT8, FP8 = BLOCK_CODECS[DType.INT8_BLOCK], BLOCK_CODECS[DType.FP8_BLOCK]
SCALED = [INT8, FP8]
CODECS = [INT8, FP8, TOPK]
INF, NAN = np.inf, np.nan
FLOAT32 = np.finfo(np.float32)
#: Blocks; the scaled codecs work on BATCH_BLOCKS at a time.
COUNTS = [0, 1, 2, 3, BATCH_BLOCKS - 1, BATCH_BLOCKS, BATCH_BLOCKS + 1, 2 * BATCH_BLOCKS + 5]
FEW = settings(max_examples=30)


def name_of(codec):
    return codec.dtype.name


def push_bytes(codec, count, k=5):
    """Return the bytes of a contribution of this many blocks."""
    return count * (SCALED_BYTES if codec is not TOPK else k * TOPK_ENTRY_BYTES)


def layout_bytes_of(codec, count):
    return count * codec.block * codec.dtype.itemsize


def encoded(codec, values, k=5):
    """Make a contribution from rows of values. Bytes that are not written stay 0xaa."""
    out = np.full(push_bytes(codec, len(values), k), 0xAA, np.uint8)
    codec.encode(values, out)
    return out


def started(codec, payload, count):
    """Return the reducer's accumulator after a contribution, a row per block."""
    accumulator = np.full(count * codec.block, 7.0, np.float32)
    codec.start(accumulator, payload)
    return accumulator.reshape(count, codec.block)


def finished(codec, accumulator):
    out = memoryview(
        bytearray(b"\xaa" * codec.dtype.format.result_bytes(layout_bytes_of(codec, len(accumulator))))
    )
    return codec.finish(accumulator.reshape(-1).copy(), out)


def decoded(codec, payload, count):
    out = np.full((count, codec.block), 7.0, np.float32)
    codec.decode(payload, out)
    return out


def sent(codec, values, k=5):
    """Return the values that arrive when one rank sends these."""
    return started(codec, encoded(codec, values, k), len(values))


def random_rows(codec, count, seed=0):
    """Return rows of very different magnitudes, with everything that a gradient may contain."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((count, codec.block)) * 10.0 ** random.integers(-20, 20, (count, 1))
    values[random.random(values.shape) < 0.1] = 0
    return values.astype(np.float32)


def bits(values):
    return np.ascontiguousarray(values).view(np.uint8).tobytes()


def bfloat16(values):
    """Round float32 as torch does."""
    return torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()


def floats(codec, **limits):
    """Any rows of float32; hypothesis fills most of a row with one value."""
    elements = st.floats(width=32, **limits)
    return st.integers(1, 3).flatmap(
        lambda count: arrays.arrays(np.float32, (count, codec.block), elements=elements)
    )


NUMBERS = {"allow_nan": False, "allow_infinity": False}


# ---- sizes ----


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
@pytest.mark.parametrize("count", COUNTS)
def test_contributions_and_results_have_the_sizes_that_the_cores_expect(codec, count):
    values, layout_bytes = random_rows(codec, count), layout_bytes_of(codec, count)
    payload = encoded(codec, values)
    assert codec.dtype.format.is_push(payload.nbytes, layout_bytes)
    result = finished(codec, sent(codec, values))
    assert codec.dtype.format.is_result(result.nbytes, layout_bytes)
    assert result.nbytes <= codec.dtype.format.result_bytes(layout_bytes)
    assert decoded(codec, result, count).shape == values.shape


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
def test_every_byte_of_a_scaled_contribution_is_written(codec):
    values = random_rows(codec, BATCH_BLOCKS + 3)
    ones, twos = np.full((2, push_bytes(codec, len(values))), [[1], [2]], np.uint8)
    codec.encode(values, ones)
    codec.encode(values, twos)
    assert bits(ones) == bits(twos)


# ---- purity: nothing depends on how blocks are distributed over chunks ----


def odd_rows(codec, count):
    """Return rows, some of which contain values that are not numbers, or barely."""
    values = random_rows(codec, count)
    for row, special in enumerate([INF, -INF, NAN, -0.0, 1e-45, 1e-40, FLOAT32.max, FLOAT32.tiny]):
        values[row::11, row * 13 :: 31] = special
    return values


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
@pytest.mark.parametrize("cut", [1, 2, 7, BATCH_BLOCKS, BATCH_BLOCKS + 1, 150])
def test_pieces_are_encoded_and_summed_like_the_whole(codec, cut):
    count = 2 * BATCH_BLOCKS + 30
    ranks = [odd_rows(codec, count), random_rows(codec, count, 1), random_rows(codec, count, 2)]

    def results(rows):
        """Return rank 0's contribution and the sum; that of TOPK decoded, because its size depends on all of it."""
        first = encoded(codec, rows[0])
        total = started(codec, first, len(rows[0]))
        for values in rows[1:]:
            codec.add(total.reshape(-1), encoded(codec, values), ReduceOp.SUM)
        payload = finished(codec, total)
        return bits(first), bits(decoded(codec, payload, len(total)) if codec is TOPK else payload)

    parts = results([values[:cut] for values in ranks]), results([values[cut:] for values in ranks])
    assert tuple(first + second for first, second in zip(*parts, strict=True)) == results(ranks)


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_contributions_are_added_in_float32_and_in_their_order(codec):
    ranks = [random_rows(codec, BATCH_BLOCKS + 3, seed) for seed in range(4)]
    total, expected = sent(codec, ranks[0]), sent(codec, ranks[0])
    for values in ranks[1:]:
        codec.add(total.reshape(-1), encoded(codec, values), ReduceOp.AVG)
        expected = expected + sent(codec, values)
    assert bits(total) == bits(expected)


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_payloads_need_no_alignment(codec, offset):
    values = random_rows(codec, 3)
    payload = encoded(codec, values)
    frame = memoryview(bytes(offset) + payload.tobytes())[offset:]
    codec.check(frame)
    assert bits(started(codec, frame, 3)) == bits(started(codec, payload, 3))
    total, again = sent(codec, values), sent(codec, values)
    codec.add(total.reshape(-1), frame, ReduceOp.SUM)
    codec.add(again.reshape(-1), payload, ReduceOp.SUM)
    assert bits(total) == bits(again)
    result = finished(codec, total)
    frame = memoryview(bytes(offset) + bytes(result))[offset:]
    assert bits(decoded(codec, frame, 3)) == bits(decoded(codec, result, 3))


@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_encoding_leaves_its_input_unchanged(codec):
    values = odd_rows(codec, 20)
    before = bits(values)
    encoded(codec, values)
    assert bits(values) == before


# ---- scaled: size of the error ----


def most(values):
    """Return the largest magnitude of each row."""
    return np.abs(values.astype(np.float64)).max(axis=1, keepdims=True)


#: A few float32 roundings: of the scale, of the factor, of two products.
ROUNDING = 4 * 2.0**-24
#: A block with a smaller maximum becomes 0.
SMALLEST = 2.0**-110


@FEW
@given(values=floats(INT8, **NUMBERS))
def test_int8_is_off_by_half_a_step_at_most(values):
    error = np.abs(sent(INT8, values).astype(np.float64) - values)
    assert (error <= most(values) / 254 + most(values) * ROUNDING + SMALLEST).all()


@FEW
@given(values=floats(FP8, **NUMBERS))
def test_fp8_is_off_by_half_a_step_at_most(values):
    error = np.abs(sent(FP8, values).astype(np.float64) - values)
    step = most(values) / 448 * 2.0**-9  # for values that are subnormal after scaling
    allowed = np.maximum(np.abs(values.astype(np.float64)) / 16, step / 2)
    assert (error <= allowed + most(values) * ROUNDING + SMALLEST).all()


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
def test_whole_steps_arrive_unchanged(codec):
    elements = np.arange(-127.0, 128.0) if codec is INT8 else np.delete(e4m3_values(), [127, 255])
    values = np.zeros((1, SCALED_BLOCK), np.float32)
    values[0, : len(elements)] = elements
    for exponent in (-100, -3, 0, 3, 100):
        scaled = values * np.float32(2.0**exponent)
        np.testing.assert_allclose(sent(codec, scaled), scaled, rtol=2.0**-22)


def upper_halves():
    """Return every upper half of a float32 within +-448 with tails that decide roundings, a row per block.

    The first element of each row is 448, so nothing is scaled.
    """
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    values = np.concatenate([patterns | tail for tail in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(
        np.float32
    )
    values = values[np.abs(values) <= 448]  # no NaN
    rows = np.zeros((-(-len(values) // 255), SCALED_BLOCK), np.float32)
    rows[:, 0] = 448
    rows[:, 1:].flat[: len(values)] = values
    return rows


def test_fp8_rounds_to_nearest_even_as_torch_does():
    values = upper_halves()
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(np.frombuffer(encoded(FP8, values), FP8.layout)["elements"], theirs)


def test_int8_rounds_to_nearest_even_as_torch_does():
    values = upper_halves()
    values[np.abs(values) > 127] = 0
    values[:, 0] = 127
    theirs = torch.from_numpy(values).round().to(torch.int8).numpy()
    assert np.array_equal(np.frombuffer(encoded(INT8, values), INT8.layout)["elements"], theirs)


def test_every_e4m3_pattern_has_the_value_that_torch_gives_it():
    patterns = torch.arange(256, dtype=torch.uint8)
    theirs = patterns.view(torch.float8_e4m3fn).to(torch.float32).numpy()
    block = np.zeros(1, FP8.layout)
    block["scale"], block["elements"] = 1, patterns.numpy()
    ours = started(FP8, block.view(np.uint8), 1)[0]
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert bits(np.nan_to_num(ours)) == bits(np.nan_to_num(theirs))


def test_every_int8_pattern_is_a_whole_number():
    block = np.zeros(1, INT8.layout)
    block["scale"], block["elements"] = 0.5, np.arange(256).astype(np.uint8).view(np.int8)
    ours = started(INT8, block.view(np.uint8), 1)[0]
    assert ours.tolist() == [*(n / 2 for n in range(128)), *(n / 2 for n in range(-128, 0))]


# ---- scaled: values that are not numbers, or barely ----


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@pytest.mark.parametrize("special", [INF, -INF, NAN])
@pytest.mark.parametrize("place", [0, 100, 255])
def test_a_non_finite_value_makes_only_its_own_block_nan(codec, special, place):
    values = random_rows(codec, 3)
    alone = sent(codec, values)
    values[1, place] = special
    arrived = sent(codec, values)
    assert np.isnan(arrived[1]).all()
    assert bits(arrived[[0, 2]]) == bits(alone[[0, 2]])


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@pytest.mark.parametrize("special", [INF, -INF, NAN, -NAN])
def test_the_sign_of_a_non_finite_value_is_not_in_the_bytes(codec, special):
    # The sign of a NaN depends on how many elements a SIMD unit processes at a time.
    values = np.full((1, SCALED_BLOCK), special, np.float32)
    assert bits(encoded(codec, values)) == bits(encoded(codec, np.full_like(values, NAN)))


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-40, FLOAT32.tiny, SMALLEST, -SMALLEST])
def test_tiny_blocks_become_zero(codec, value):
    values = np.full((2, SCALED_BLOCK), value, np.float32)
    values[1, 1:] = 0
    assert not sent(codec, values).any()
    assert not np.frombuffer(encoded(codec, values), codec.layout)["scale"].any()


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@pytest.mark.parametrize(
    "value", [np.nextafter(np.float32(SMALLEST), np.float32(1)), 1e30, 3e38, FLOAT32.max, FLOAT32.min]
)
def test_the_smallest_and_the_largest_blocks_that_are_kept(codec, value):
    values = np.zeros((1, SCALED_BLOCK), np.float32)
    values[0, 3] = value
    np.testing.assert_allclose(sent(codec, values), values, rtol=1e-6)


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
def test_a_sum_that_overflows_or_has_a_nan_of_one_rank_becomes_nan_for_everybody(codec):
    values = np.full((3, SCALED_BLOCK), [[3e38], [1.0], [1.0]], np.float32)
    total = sent(codec, values)
    values[1, 7] = NAN
    codec.add(total.reshape(-1), encoded(codec, values), ReduceOp.SUM)
    result = decoded(codec, finished(codec, total), 3)
    assert np.isnan(result[:2]).all()
    np.testing.assert_allclose(result[2], 2.0, rtol=1e-6)


# ---- scaled: malformed bytes from a peer ----


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@pytest.mark.parametrize("scale", [NAN, INF, -INF, -1.0, -0.0, 1e-45, FLOAT32.max, FLOAT32.min])
def test_any_scale_affects_only_its_own_block(codec, scale):
    blocks = np.frombuffer(encoded(codec, random_rows(codec, 3)), codec.layout)
    plain = started(codec, blocks.view(np.uint8), 3)
    elements = blocks["elements"] * 1.0 if codec is INT8 else e4m3_values()[blocks["elements"]]
    blocks["scale"][1] = scale
    codec.check(memoryview(blocks.view(np.uint8)))
    total = started(codec, blocks.view(np.uint8), 3)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(total[1], elements[1].astype(np.float32) * np.float32(scale))
    assert bits(total[[0, 2]]) == bits(plain[[0, 2]]), "the neighbours"
    codec.add(total.reshape(-1), blocks.view(np.uint8), ReduceOp.SUM)
    result = decoded(codec, finished(codec, total), 3)
    assert np.isfinite(result[[0, 2]]).all()


@pytest.mark.parametrize("codec", SCALED, ids=name_of)
@FEW
@given(payload=st.binary(min_size=2 * SCALED_BYTES, max_size=2 * SCALED_BYTES))
def test_any_bytes_are_a_scaled_contribution_and_result(codec, payload):
    codec.check(memoryview(payload))
    total = started(codec, payload, 2)
    assert bits(decoded(codec, payload, 2)) == bits(total)
    codec.add(total.reshape(-1), payload, ReduceOp.SUM)
    assert finished(codec, total).nbytes == len(payload)


# ---- top-k: selection ----


def entries(payload, k):
    """Return indices and values of a contribution, a row per block."""
    words = np.frombuffer(payload, "<u2").reshape(-1, k, 2)
    values = np.empty(words[..., 1].size, np.float32)
    widen(words[..., 1].ravel(), values)
    return words[..., 0], values.reshape(-1, k)


@FEW
@given(values=floats(TOPK, allow_nan=False), k=st.sampled_from([1, 2, 5, 51, TOPK_MAX - 1, TOPK_MAX]))
def test_the_k_largest_magnitudes_are_chosen(values, k):
    indices, chosen = entries(encoded(TOPK, values, k), k)
    theirs = torch.from_numpy(np.abs(values)).topk(k, dim=1).values.sort(dim=1).values.numpy()
    ours = np.take_along_axis(values, indices.astype(np.intp), axis=1)
    assert np.array_equal(np.sort(np.abs(ours), axis=1), theirs)
    assert (np.diff(indices.astype(int), axis=1) > 0).all(), "each once, in order"
    assert bits(chosen) == bits(bfloat16(ours))


@pytest.mark.parametrize("k", [1, 5, TOPK_MAX])
@pytest.mark.parametrize("special", [INF, -INF, NAN])
def test_non_finite_values_are_always_chosen(k, special):
    values = random_rows(TOPK, 3) * np.float32(1e-10)
    values[:, 0] = FLOAT32.max
    values[1, 300] = special
    arrived = sent(TOPK, values, k)
    np.testing.assert_array_equal(arrived[1, 300], np.float32(special))
    assert not np.isnan(arrived[[0, 2]]).any()


def test_nan_is_chosen_before_infinity():
    values = np.full((1, TOPK_BLOCK), INF, np.float32)
    values[0, 17] = NAN
    indices, chosen = entries(encoded(TOPK, values, 1), 1)
    assert indices.tolist() == [[17]]
    assert np.isnan(chosen).all()


@pytest.mark.parametrize("k", [1, 5, TOPK_MAX])
def test_elements_not_chosen_become_zero(k):
    values = np.random.default_rng(0).standard_normal((3, TOPK_BLOCK)).astype(np.float32)
    arrived = sent(TOPK, values, k)
    assert (np.count_nonzero(arrived, axis=1) == k).all()
    assert bits(arrived[arrived != 0]) == bits(bfloat16(values)[arrived != 0])


def test_ranks_may_send_different_numbers_of_elements():
    values = random_rows(TOPK, 3)
    total = sent(TOPK, values, 5)
    TOPK.add(total.reshape(-1), encoded(TOPK, values, 51), ReduceOp.SUM)
    assert bits(total) == bits(sent(TOPK, values, 5) + sent(TOPK, values, 51))


# ---- top-k: results ----


def with_nonzeros(numbers):
    """Return rows with this many elements that are not 0."""
    random = np.random.default_rng(sum(numbers))
    total = np.zeros((len(numbers), TOPK_BLOCK), np.float32)
    for row, number in zip(total, numbers, strict=True):
        row[random.permutation(TOPK_BLOCK)[:number]] = random.standard_normal(number)
    return total


@FEW
@given(total=floats(TOPK))
def test_a_result_is_the_sum_in_bfloat16(total):
    result = decoded(TOPK, finished(TOPK, total), len(total))
    np.testing.assert_array_equal(result, bfloat16(total))


@pytest.mark.parametrize(
    ("numbers", "nbytes"),
    [
        ((), 0),
        ((0,), 2),
        ((1,), 2 + 4),
        ((255,), 2 + 4 * 255),  # 1022 of 1024
        ((256,), 1024),
        ((512,), 1024),
        ((0, 0), 4),
        ((200, 310), 4 + 4 * 510),  # 2044 of 2048
        ((200, 311), 2048),  # would be as long
        ((512, 0), 2048),
        ((512, 0, 0), 6 + 4 * 512),
    ],
)
def test_a_result_is_dense_unless_sparse_is_shorter(numbers, nbytes):
    total = with_nonzeros(numbers)
    result = finished(TOPK, total)
    assert result.nbytes == nbytes
    np.testing.assert_array_equal(decoded(TOPK, result, len(numbers)), bfloat16(total))


def test_a_sparse_result_by_hand():
    total = np.zeros((2, TOPK_BLOCK), np.float32)
    total[0, 511], total[1, 0], total[1, 3] = 1.0, -2.0, 0.5
    words = np.frombuffer(finished(TOPK, total), "<u2").tolist()
    assert words == [1, 2, 511, 0x3F80, 0, 0xC000, 3, 0x3F00]


def test_a_contribution_by_hand():
    values = np.zeros((2, TOPK_BLOCK), np.float32)
    values[0, [511, 4]], values[1, [0, 3]] = [1.0, 3.0], [-2.0, 0.5]
    words = encoded(TOPK, values, 2).view("<u2").tolist()
    assert words == [4, 0x4040, 511, 0x3F80, 0, 0xC000, 3, 0x3F00]


def test_a_scaled_contribution_by_hand():
    values = np.zeros((1, SCALED_BLOCK), np.float32)
    values[0, :3] = [448.0, -224.0, 1.0]
    payload = encoded(FP8, values)
    assert payload[:7].tolist() == [0, 0, 0x80, 0x3F, 0x7E, 0xF6, 0x38]
    values[0, :3] = [127.0, -63.0, 0.5]
    payload = encoded(INT8, values)
    assert payload[:4].view("<f4")[0] == pytest.approx(1.0, rel=1e-6)
    assert payload[4:7].view(np.int8).tolist() == [127, -63, 0]


# ---- top-k: malformed bytes from a peer ----


def expanded(payload, count):
    out = np.full(count * TOPK_BLOCK, 7, np.uint16)
    TOPK.expand(payload, out)
    return out


def words(*numbers):
    return memoryview(np.array(numbers, "<u2").tobytes())


@pytest.mark.parametrize(
    "payload",
    [
        words(),  # no counts
        words(0),
        words(0, 0, 0),  # more than the counts say
        words(0, 0, 0, 0),
        words(1, 0),  # fewer
        words(1, 0, 7),
        words(0, 65535, 1, 1),
        words(65535, 65535),
        words(1, 1, 7, 0x3F80, 7),
        words(1, 1, 7, 0x3F80, 7, 0x3F80, 7),
    ],
)
def test_wrong_counts_are_refused(payload):
    with pytest.raises(MalformedFrame, match="elements in 2 blocks"):
        expanded(payload, 2)


@pytest.mark.parametrize("index", [512, 513, 65535])
def test_an_index_beyond_its_block(index):
    with pytest.raises(MalformedFrame, match=f"index {index} of a top-k element; allowed: 0 to 511"):
        expanded(words(1, 1, 3, 0x3F80, index, 0x3F80), 2)
    with pytest.raises(MalformedFrame, match=f"index {index} of a top-k element"):
        TOPK.check(words(3, 0x3F80, index, 0x3F80))


def test_the_last_index_of_a_block_is_allowed():
    out = expanded(words(1, 1, 511, 0x3F80, 511, 0xC000), 2)
    assert np.flatnonzero(out).tolist() == [511, 1023]
    assert out[[511, 1023]].tolist() == [0x3F80, 0xC000]
    TOPK.check(words(511, 0x3F80, 511, 0xC000))


@pytest.mark.parametrize("nbytes", [1, 3, 5, 7, 2047, 2049])
def test_a_result_of_half_an_element(nbytes):
    with pytest.raises(MalformedFrame, match=f"{nbytes} bytes"):
        expanded(memoryview(bytes(nbytes)), 2)
    with pytest.raises(MalformedFrame):
        decoded(TOPK, memoryview(bytes(nbytes)), 2)


def test_every_truncated_result_is_noticed():
    result = finished(TOPK, with_nonzeros((3, 0, 40)))
    for nbytes in range(result.nbytes):
        with pytest.raises(MalformedFrame):
            expanded(result[:nbytes], 3)
    assert expanded(result, 3).any()


def test_a_repeated_index_takes_either_value():
    assert expanded(words(2, 7, 0x3F80, 7, 0xC000), 1)[7] in (0x3F80, 0xC000)


@st.composite
def almost_results(draw):
    """Return counts, indices and values that may be right, with a few bytes too many or too few."""
    counts = draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))
    total = sum(counts)
    indices = draw(st.lists(st.integers(0, 530), min_size=total, max_size=total))
    entries = [word for index in indices for word in (index, 7)]
    payload = np.array([*counts, *entries], "<u2").tobytes()
    return payload[: len(payload) - draw(st.integers(0, 2))] + draw(st.binary(max_size=3))


@settings(max_examples=100)
@given(payload=st.one_of(st.binary(max_size=40), st.integers(2040, 2060).map(bytes), almost_results()))
def test_a_result_of_any_bytes_is_accepted_or_malformed(payload):
    payload = memoryview(payload)
    try:
        patterns = expanded(payload, 2)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            decoded(TOPK, payload, 2)
        return
    values = np.empty(2 * TOPK_BLOCK, np.float32)
    widen(patterns, values)
    assert bits(decoded(TOPK, payload, 2)) == bits(values)


@settings(max_examples=100)
@given(
    payload=st.one_of(
        st.binary(max_size=40),
        st.lists(st.integers(0, 530), max_size=40).map(lambda numbers: np.array(numbers, "<u2").tobytes()),
    )
)
def test_a_contribution_of_any_bytes_is_accepted_or_malformed(payload):
    is_sized = DType.TOPK.format.is_push(len(payload), layout_bytes_of(TOPK, 2))
    try:
        TOPK.check(memoryview(payload))
    except MalformedFrame:
        indices = np.frombuffer(payload, "<u2")[::2]
        assert indices.max() >= TOPK_BLOCK
        return
    if is_sized:  # otherwise the core refuses it
        total = started(TOPK, payload, 2)
        TOPK.add(total.reshape(-1), payload, ReduceOp.SUM)
        assert DType.TOPK.format.is_result(finished(TOPK, total).nbytes, layout_bytes_of(TOPK, 2))


# ---- dither ----


def test_an_int8_result_is_right_on_average():
    """This also holds below half a step, where rounding to nearest would turn everything into 0."""
    rows = np.full((4000, 256), 0.3 / 127, np.float32)
    rows[:, 0] = 1.0
    rows[:, 1] = np.linspace(0, 1, len(rows))  # no two blocks are the same
    values = decoded(INT8, finished(INT8, rows), len(rows))[:, 2:] * 127
    assert set(np.rint(values).ravel()) == {0.0, 1.0}
    assert abs(values.mean() - 0.3) < 0.01
    assert abs(values.mean(axis=0) - 0.3).max() < 0.05, "whatever the place in the block"
    assert abs(values.mean(axis=1) - 0.3).max() < 0.15, "and in each block"


def test_the_noise_of_a_block_depends_on_nothing_but_its_bits():
    rows = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
    whole = bytes(finished(INT8, rows))
    assert bytes(finished(INT8, rows[1:])) == whole[260:]
    other = rows.copy()
    other[0, 7] = np.nextafter(other[0, 7], np.float32(9))
    changed = bytes(finished(INT8, other))
    assert changed[260:] == whole[260:]
    assert changed[:260] != whole[:260]


@pytest.mark.parametrize("value", [0.0, 1.0, -127.0, 5.0])
def test_noise_does_not_change_values_that_need_no_rounding(value):
    rows = np.full((200, 256), value, np.float32)
    rows[:, 0] = 127.0
    rows[:, 1] = np.arange(-100, 100) * 1.0  # so that each block has its own noise
    assert np.array_equal(decoded(INT8, finished(INT8, rows), len(rows)), rows)
