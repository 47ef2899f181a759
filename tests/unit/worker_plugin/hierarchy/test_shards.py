"""Shards of a node: the owner of each element, whatever the buckets, and the fold, which is the reducers' own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reduction.codecs import CODECS
from reduction.model import DType, ReduceOp

from worker_plugin.hierarchy.shards import Shards, fold
from worker_plugin.tensors.encoding import ParameterSlice, Residual


def slices_of(*numels):
    offsets = np.cumsum([0, *numels])
    return [ParameterSlice(int(at), numel) for at, numel in zip(offsets[:-1], numels, strict=True)]


LAYOUTS = st.tuples(
    st.lists(st.integers(0, 40), min_size=1, max_size=5), st.sampled_from([1, 4, 16]), st.integers(1, 9)
)


@given(LAYOUTS)
def test_every_element_is_in_one_shard_and_comes_back_to_its_place(layout):
    numels, block, size = layout
    shards = Shards(slices_of(*numels), block, size)
    flat = torch.arange(sum(numels), dtype=torch.float32)
    packed = shards.pack(flat)
    assert sorted(packed.tolist()) == flat.tolist()
    assert sum(shards.sizes) == len(flat)
    assert shards.most == max(shards.sizes)
    rows = torch.full((size, shards.most), -1.0)
    for row, shard in zip(rows, packed.split(shards.sizes), strict=True):
        row[: len(shard)] = shard
    back = torch.full_like(flat, -2.0)
    shards.unpack(rows, back)
    assert torch.equal(back, flat)


@given(LAYOUTS)
def test_shard_borders_are_block_borders_of_a_piece(layout):
    numels, block, size = layout
    slices = slices_of(*numels)
    shards = Shards(slices, block, size)
    flat = torch.tensor([float(i) for slice_ in slices for i in range(slice_.numel)])
    for rank, shard in enumerate(shards.pack(flat).split(shards.sizes)):
        for slice_ in shards.slices_of(rank):
            values = shard[slice_.offset : slice_.offset + slice_.numel].tolist()
            assert values[0] % block == 0
            assert values == list(range(int(values[0]), int(values[0]) + slice_.numel))


@given(LAYOUTS)
def test_shards_are_even(layout):
    numels, block, size = layout
    sizes = Shards(slices_of(*numels), block, size).sizes
    assert max(sizes) - min(sizes) <= 2 * block * len(numels)
    if block == len(numels) == 1:
        assert max(sizes) - min(sizes) <= 1


def test_which_rank_has_a_block_does_not_depend_on_the_bucket():
    alone = Shards(slices_of(1000), 256, 2)
    among = Shards(slices_of(7, 1000, 300), 256, 2)
    assert [slice_.numel for slice_ in alone.slices_of(1)] == [1000 - 512]
    assert [slice_.numel for slice_ in among.slices_of(1)] == [7, 1000 - 512, 300 - 256]


def test_a_shard_gets_its_part_of_a_residual():
    residual = Residual(torch.arange(10.0), torch.zeros(10), 8.0)
    shards = Shards([ParameterSlice(0, 3), ParameterSlice(3, 10, residual)], 4, 2)
    none, part = shards.slices_of(1)
    assert none.residual is None
    assert part.residual.kept.tolist() == [4, 5, 6, 7, 8, 9]
    assert part.residual.loss_scale == 8.0
    part.residual.pending[:] = -1
    assert residual.pending.tolist() == [0, 0, 0, 0, -1, -1, -1, -1, -1, -1]
    assert [(slice_.offset, slice_.numel) for slice_ in (none, part)] == [(0, 3), (3, 6)]


def test_one_piece_is_not_copied():
    flat = torch.arange(10.0)
    assert Shards(slices_of(10), 1, 3).pack(flat) is flat
    assert Shards(slices_of(10), 1, 3).sizes == [3, 3, 4]


def test_an_empty_bucket_has_empty_shards():
    shards = Shards([], 256, 3)
    assert shards.sizes == [0, 0, 0]
    assert shards.pack(torch.empty(0)).numel() == 0
    assert shards.slices_of(2) == []


TORCH = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.UINT8: torch.uint8,
    DType.INT8: torch.int8,
    DType.BOOL: torch.bool,
}


@pytest.mark.parametrize("dtype", TORCH, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", ReduceOp, ids=lambda op: op.name)
def test_the_fold_equals_that_of_a_reducers_accumulator(dtype, op):
    codec, generator = CODECS[dtype], torch.Generator().manual_seed(1)
    if TORCH[dtype].is_floating_point:
        rows = (torch.randn((4, 1000), generator=generator) * 100).to(TORCH[dtype])
        rows[1, :3] = torch.tensor([float("inf"), float("nan"), -0.0])
    elif dtype is DType.BOOL:
        rows = torch.rand((4, 1000), generator=generator) < 0.5
    else:
        rows = torch.randint(-128, 127, (4, 1000), generator=generator).to(TORCH[dtype])
    payloads = [memoryview(row.contiguous().view(torch.uint8).numpy()) for row in rows]
    accumulator = np.empty(1000, codec.accumulation)
    codec.start(accumulator, payloads[0])
    for payload in payloads[1:]:
        codec.add(accumulator, payload, op)
    folded = fold(rows.clone().unbind(), op)
    expected = torch.from_numpy(accumulator)
    assert folded.element_size() == expected.element_size()
    if dtype is DType.BOOL:
        folded = folded.view(torch.uint8)
    assert torch.equal(folded.isnan(), expected.isnan())
    assert torch.equal(folded.nan_to_num(nan=7), expected.nan_to_num(nan=7))
