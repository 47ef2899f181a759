"""The size of a chunk on the wire: pure arithmetic on which cores, codecs and encodings must agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction import limits
from reduction.codecs import CODECS
from reduction.model import FORMATS, DType
from reduction.model.wire_sizes import TOPK_BLOCK, TOPK_ENTRY_BYTES, TOPK_MAX

SCALED = [DType.INT8_BLOCK, DType.FP8_BLOCK]
COMPRESSED = [*SCALED, DType.TOPK]
PLAIN = [dtype for dtype in DType if dtype not in COMPRESSED]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("numel", [0, 1, 511, 512, 513])
def test_plain_elements_keep_their_size(dtype, numel):
    assert sizes(dtype, numel) == (numel, *[numel * dtype.itemsize] * 3)
    assert dtype.format.block == 1


def sizes(dtype, numel):
    """Return the blocks of a chunk, the minimum and maximum bytes of a push, and the same for a result."""
    fmt, layout_bytes = dtype.format, numel * dtype.itemsize
    return fmt.blocks(layout_bytes), *fmt.push_sizes(layout_bytes), fmt.result_bytes(layout_bytes)


@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize(("numel", "blocks"), [(0, 0), (1, 1), (255, 1), (256, 1), (257, 2), (1024, 4)])
def test_scaled_blocks_of_256_have_their_scale_in_front(dtype, numel, blocks):
    assert sizes(dtype, numel) == (blocks, *[blocks * 260] * 3)
    assert (dtype.format.block, dtype.itemsize) == (256, 2)


@pytest.mark.parametrize(("numel", "blocks"), [(0, 0), (1, 1), (511, 1), (512, 1), (513, 2), (5120, 10)])
def test_topk_has_blocks_of_512_and_is_never_more_than_bfloat16(numel, blocks):
    assert sizes(DType.TOPK, numel) == (blocks, blocks * 4, blocks * 1024, blocks * 1024)
    assert (DType.TOPK.format.block, DType.TOPK.itemsize) == (512, 2)


@pytest.mark.parametrize("dtype", [*PLAIN, *SCALED])
def test_most_payloads_have_one_size(dtype):
    nbytes = dtype.format.result_bytes(4096)
    for other in (0, 1, nbytes // 2, nbytes - 1, nbytes + 1, 2 * nbytes):
        assert not dtype.format.is_push(other, 4096)
        assert not dtype.format.is_result(other, 4096)
    assert dtype.format.is_push(nbytes, 4096)
    assert dtype.format.is_result(nbytes, 4096)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topk_push_has_the_same_number_of_elements_in_each_block(count):
    layout_bytes = count * TOPK_BLOCK * DType.TOPK.itemsize
    taken = [nbytes for nbytes in range(2 * layout_bytes) if DType.TOPK.format.is_push(nbytes, layout_bytes)]
    assert taken == [count * k * TOPK_ENTRY_BYTES for k in range(1, TOPK_MAX + 1)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topk_result_may_be_smaller_than_its_layout(count):
    layout_bytes = count * TOPK_BLOCK * DType.TOPK.itemsize
    assert DType.TOPK.format.is_result(0, layout_bytes), "its codec finds out"
    assert DType.TOPK.format.is_result(layout_bytes, layout_bytes)
    assert not DType.TOPK.format.is_result(layout_bytes + 1, layout_bytes)


@pytest.mark.parametrize("dtype", DType)
def test_an_empty_chunk_has_an_empty_push_and_result(dtype):
    assert dtype.format.push_sizes(0) == (0, 0)
    assert [dtype.format.is_push(nbytes, 0) for nbytes in (0, 1, 4)] == [True, False, False]
    assert [dtype.format.is_result(nbytes, 0) for nbytes in (0, 1, 4)] == [True, False, False]


@pytest.mark.parametrize("dtype", DType)
def test_only_a_topk_result_has_a_size_unknown_until_it_arrives(dtype):
    assert dtype.format.may_shrink is (dtype is DType.TOPK)


@pytest.mark.parametrize("dtype", COMPRESSED)
def test_chunk_borders_are_block_borders(dtype):
    assert limits.CHUNK_BYTES_MULTIPLE % (dtype.format.block * dtype.itemsize) == 0


@given(
    dtype=st.sampled_from(list(DType)),
    kib=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    rest=st.integers(0, 300),
)
def test_the_bytes_of_chunks_add_up_to_those_of_the_whole(dtype, kib, rest):
    spans = [*(number * limits.CHUNK_BYTES_MULTIPLE for number in kib), rest * dtype.itemsize]
    fmt = dtype.format
    for size in (fmt.blocks, fmt.result_bytes, lambda layout_bytes: fmt.push_sizes(layout_bytes)[0]):
        assert sum(map(size, spans)) == size(sum(spans))


@given(dtype=st.sampled_from(COMPRESSED), numel=st.integers(0, 1 << 20))
def test_no_payload_exceeds_what_the_credit_counts(dtype, numel):
    whole = dtype.format.blocks(numel * dtype.itemsize) * dtype.format.block * dtype.itemsize
    assert dtype.format.push_sizes(whole)[1] <= whole
    assert dtype.format.result_bytes(whole) <= whole


def test_the_table_has_a_row_for_every_dtype():
    assert list(FORMATS) == list(DType)
    assert list(CODECS) == list(DType)
