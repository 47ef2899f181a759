"""How many bytes a chunk has on the wire: pure arithmetic that cores, codecs and encodings must agree on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction import formats, limits
from reduction.formats import TOPK_BLOCK, TOPK_ENTRY_BYTES, TOPK_MAX
from reduction.model import DType

SCALED = [DType.INT8_BLOCK, DType.FP8_BLOCK]
COMPRESSED = [*SCALED, DType.TOPK]
PLAIN = [dtype for dtype in DType if dtype not in COMPRESSED]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("numel", [0, 1, 511, 512, 513])
def test_plain_elements_are_what_they_are(dtype, numel):
    span = numel * dtype.itemsize
    assert formats.block(dtype) == 1
    assert formats.blocks(dtype, span) == numel
    assert formats.push_sizes(dtype, span) == (span, span)
    assert formats.result_bytes(dtype, span) == span


@pytest.mark.parametrize(
    ("dtype", "elements", "itemsize"),
    [(DType.INT8_BLOCK, 256, 2), (DType.FP8_BLOCK, 256, 2), (DType.TOPK, 512, 2)],
)
def test_blocks_are_part_of_the_protocol(dtype, elements, itemsize):
    assert (formats.block(dtype), dtype.itemsize) == (elements, itemsize)


@pytest.mark.parametrize("dtype", COMPRESSED)
@pytest.mark.parametrize(
    ("whole", "beyond", "blocks"),
    [(0, 0, 0), (0, 1, 1), (1, -1, 1), (1, 0, 1), (1, 1, 2), (7, 0, 7), (7, 1, 8)],
)
def test_a_block_that_begins_counts(dtype, whole, beyond, blocks):
    assert formats.blocks(dtype, (whole * formats.block(dtype) + beyond) * dtype.itemsize) == blocks


@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize(("numel", "nbytes"), [(0, 0), (1, 260), (256, 260), (257, 520), (1024, 1040)])
def test_scaled_blocks_have_their_scale_in_front(dtype, numel, nbytes):
    span = numel * dtype.itemsize
    assert formats.push_sizes(dtype, span) == (nbytes, nbytes)
    assert formats.result_bytes(dtype, span) == nbytes


@pytest.mark.parametrize(
    ("numel", "least", "most", "result"),
    [(0, 0, 0, 0), (1, 4, 1024, 1024), (512, 4, 1024, 1024), (513, 8, 2048, 2048), (5120, 40, 10240, 10240)],
)
def test_topk_is_never_more_than_bfloat16(numel, least, most, result):
    span = numel * DType.TOPK.itemsize
    assert formats.push_sizes(DType.TOPK, span) == (least, most)
    assert formats.result_bytes(DType.TOPK, span) == result


@pytest.mark.parametrize("dtype", [*PLAIN, *SCALED])
def test_most_payloads_have_one_size(dtype):
    nbytes = formats.result_bytes(dtype, 4096)
    for other in (0, 1, nbytes // 2, nbytes - 1, nbytes + 1, 2 * nbytes):
        assert not formats.is_push(dtype, other, 4096)
        assert not formats.is_result(dtype, other, 4096)
    assert formats.is_push(dtype, nbytes, 4096)
    assert formats.is_result(dtype, nbytes, 4096)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topk_push_has_the_same_number_of_elements_in_each_block(count):
    span = count * TOPK_BLOCK * DType.TOPK.itemsize
    taken = [nbytes for nbytes in range(2 * span) if formats.is_push(DType.TOPK, nbytes, span)]
    assert taken == [count * k * TOPK_ENTRY_BYTES for k in range(1, TOPK_MAX + 1)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topk_result_is_as_large_as_it_has_to_be(count):
    span = count * TOPK_BLOCK * DType.TOPK.itemsize
    assert formats.is_result(DType.TOPK, 0, span), "its codec finds out"
    assert formats.is_result(DType.TOPK, span, span)
    assert not formats.is_result(DType.TOPK, span + 1, span)


@pytest.mark.parametrize("dtype", DType)
def test_an_empty_chunk_has_an_empty_push_and_result(dtype):
    assert formats.push_sizes(dtype, 0) == (0, 0)
    assert [formats.is_push(dtype, nbytes, 0) for nbytes in (0, 1, 4)] == [True, False, False]
    assert [formats.is_result(dtype, nbytes, 0) for nbytes in (0, 1, 4)] == [True, False, False]


@pytest.mark.parametrize("dtype", DType)
def test_results_whose_size_is_known_are_placed(dtype):
    assert formats.is_placed(dtype) is (dtype is not DType.TOPK)


@pytest.mark.parametrize("dtype", COMPRESSED)
def test_chunk_borders_are_block_borders(dtype):
    assert limits.CHUNK_BYTES_MULTIPLE % (formats.block(dtype) * dtype.itemsize) == 0


@given(
    dtype=st.sampled_from(list(DType)),
    kib=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    rest=st.integers(0, 300),
)
def test_the_bytes_of_chunks_add_up_to_those_of_the_whole(dtype, kib, rest):
    spans = [*(number * limits.CHUNK_BYTES_MULTIPLE for number in kib), rest * dtype.itemsize]
    for size in (formats.blocks, formats.result_bytes, lambda *what: formats.push_sizes(*what)[0]):
        assert sum(size(dtype, span) for span in spans) == size(dtype, sum(spans))


@given(dtype=st.sampled_from(COMPRESSED), numel=st.integers(0, 1 << 20))
def test_nothing_is_more_than_the_credit_counts(dtype, numel):
    whole = formats.blocks(dtype, numel * dtype.itemsize) * formats.block(dtype) * dtype.itemsize
    assert formats.push_sizes(dtype, whole)[1] <= whole
    assert formats.result_bytes(dtype, whole) <= whole
