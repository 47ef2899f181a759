"""Tensors that cannot be reduced are rejected with a ConfigError, before anything is issued."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reduction.errors import ConfigError
from torch.distributed import ReduceOp

from worker_plugin.tensors.supported import admit, each_once


def without_memory(tensor):
    """Free a tensor's storage, as FSDP does."""
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (None, "a NoneType cannot be reduced"),
        ([torch.ones(1)], "a list cannot be reduced"),
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (torch.ones(2, 3).t(), "not contiguous"),
        (torch.ones(1).expand(2), "not contiguous"),
        (torch._neg_view(torch.ones(2)), "negative bit"),
        (torch.ones(2, device="meta"), "meta"),
        (torch.ones(2, dtype=torch.complex64), "complex64"),
        (without_memory(torch.ones(2)), "without its memory"),
    ],
)
def test_unsupported_tensors(tensor, text):
    with pytest.raises(ConfigError, match=text):
        admit(tensor, ReduceOp.SUM)


def test_a_tensor_inside_of_a_transformation_has_no_memory_of_its_own():
    def all_reduce(tensor):
        with pytest.raises(ConfigError, match="without its memory"):
            admit(tensor, ReduceOp.SUM)
        return tensor.sum()

    torch.func.vmap(all_reduce)(torch.ones(2, 3))
    torch.func.grad(all_reduce)(torch.ones(3))


@pytest.mark.parametrize("tensor", [torch.ones(1, 2)[:, 0], torch.ones(0)[::2], torch.tensor(1.0)])
def test_one_element_or_none_may_have_any_stride(tensor):
    admit(tensor, ReduceOp.SUM)


axes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=4)


@given(axes, st.integers(0, 3))
def test_each_element_is_kept_once_or_refused(axes, offset):
    shape, stride = zip(*axes, strict=True) if axes else ((), ())
    places = torch.arange(200).as_strided(shape, stride, offset)
    try:
        once = each_once(places)
    except ConfigError:
        # If strides are multiples of each other, they show exactly whether elements share memory.
        assert any(a % b and b % a for a in stride for b in stride if a and b) or shares(places)
        return
    assert not shares(once)
    assert set(once.flatten().tolist()) == set(places.flatten().tolist())


def shares(places):
    """Return whether elements share memory, apart from those repeated by a stride of 0."""
    once = places[tuple(slice(None if stride else 1) for stride in places.stride())]
    return len(once.unique()) < once.numel()


def test_a_tensor_without_memory_is_not_copied():
    with pytest.raises(ConfigError, match="without its memory"):
        each_once(without_memory(torch.ones(2, 2).t()))
