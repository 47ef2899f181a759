"""Two tensors have the same digest if and only if they have the same bits."""

import itertools

import pytest
import torch
from torch import nn

from worker_plugin.tensors.digest import BLOCK, ROW, digest, digests

#: Bytes of a row, and of a block.
ROW_BYTES, BLOCK_BYTES = 8 * ROW, 8 * ROW * BLOCK
SIZES = [
    0,
    1,
    7,
    8,
    9,
    ROW_BYTES - 1,
    ROW_BYTES,
    ROW_BYTES + 1,
    BLOCK_BYTES + 8,
    2 * BLOCK_BYTES + ROW_BYTES + 5,
]


def of(tensor):
    return digests([tensor]).item()


@pytest.mark.parametrize("size", SIZES)
def test_each_flipped_bit_changes_it(size):
    octets = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    before = of(octets)
    places = range(size) if size < 10 else [0, 1, size // 2, ROW_BYTES - 2, size - 2, size - 1]
    for place, bit in itertools.product(places, range(8)):
        octets[place] ^= 1 << bit
        assert of(octets) != before
        octets[place] ^= 1 << bit
    assert of(octets) == before


def test_it_is_the_same_across_versions_and_machines():
    assert of(torch.arange(100_000, dtype=torch.float32)) == 4940956955523391488


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_memory_layout_does_not_matter(dtype):
    tensor = torch.randint(2, (100, 31), generator=torch.Generator().manual_seed(1)).to(dtype)
    for offset in range(9):
        room = torch.zeros(offset + tensor.numel(), dtype=dtype)
        room[offset:] = tensor.view(-1)
        assert of(room[offset:]) == of(tensor)
    assert of(tensor.t().contiguous().t()) == of(tensor)
    assert of(nn.Parameter(tensor)) == of(tensor) if tensor.is_floating_point() else True
    assert of(tensor.conj().conj()) == of(tensor)
    for stride in (1, 2, 5):  # one element may have any stride, and torch calls it contiguous
        assert of(tensor.view(-1)[:stride][::stride]) == of(tensor.view(-1)[:1])


def test_order_matters():
    words = torch.arange(3 * ROW, dtype=torch.int64)
    swapped = words.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    rows = words.view(3, ROW)[[1, 0, 2]]
    moved = words.roll(1)
    assert len({of(one) for one in (words, swapped, rows, moved)}) == 4
    # Differences that a sum with weights 1, 2, 3 would miss.
    assert of(torch.tensor([5, 5, 5])) != of(torch.tensor([6, 3, 6]))


def test_zeros_and_nans_with_different_bits_differ():
    zeros, nans = torch.tensor([0.0, -0.0]), torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32)
    assert of(zeros[:1]) != of(zeros[1:])
    assert of(nans.view(torch.float32)[:1]) != of(nans.view(torch.float32)[1:])


def test_names_shapes_and_dtypes_of_a_model_matter():
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    other.load_state_dict(model.state_dict())
    assert digest(model) == digest(other) == digest(dict(reversed(model.state_dict().items())))
    assert len(digest(model)) == 32
    named = model.state_dict()
    changed = [
        {"w": named["weight"], "bias": named["bias"]},
        named | {"weight": named["weight"].view(2, 4).reshape(4, 2)},
        named | {"weight": named["weight"].view(torch.int32)},
        {"weight": named["weight"]},
    ]
    assert len({digest(one) for one in [named, *changed]}) == 5
    assert digest({}) == digest({})


@pytest.mark.parametrize("wrong", [torch.eye(2).to_sparse(), "weights", None])
def test_only_dense_tensors_are_accepted(wrong):
    with pytest.raises(TypeError, match="a digest is of dense tensors"):
        digest({"wrong": wrong})
