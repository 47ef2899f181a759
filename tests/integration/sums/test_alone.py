"""A single rank: no bit of its tensors changes, whatever they contain and whatever `wire_dtype` is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.expected.lossy import WIRES
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach
from worker_plugin.process_group import ReductionOptions

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool)
OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")


def any_bits(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return 1025 elements of arbitrary bits, including NaNs with payloads, infinities and numbers of all sizes."""
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype is torch.bool else 256
    found = torch.randint(top, (1025 * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return found.view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def keep(all_reduce: Callable[[torch.Tensor, Any], object]) -> None:
    """All-reduce tensors of all dtypes with all operations, and check that they keep their bits."""
    for seed, dtype in enumerate((*FLOATS, *INTEGERS)):
        for op in OPS:
            tensor = any_bits(dtype, seed)
            before = bits(tensor)
            if op != "AVG" or dtype in FLOATS:
                all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert bits(tensor) == before, (dtype, op)


def alone(
    rank: Any, reducers: list[str], job: str, wires: list[str | None], settings: dict[str, Any]
) -> None:
    for wire in wires:
        with rank.state(reducers, f"{job}-{wire}", wire_dtype=wire, **settings) as state:
            keep(lambda tensor, op, state=state: rank.wait(state.all_reduce(tensor, op)))
            model = nn.Linear(41, 25)
            reference, image = copy.deepcopy(model), torch.randn(3, 41)
            ddp_model = DistributedDataParallel(model)
            attach(ddp_model, state)
            for one in (reference, ddp_model):
                one(image).square().sum().backward()
            assert bits(model.weight.grad) == bits(reference.weight.grad), wire


def in_a_group(rank: Any, reducers: list[str], wires: list[str | None]) -> None:
    for wire in wires:
        options = ReductionOptions(reducers=reducers, wire_dtype=wire)
        group = dist.new_group(backend="reduction", pg_options=options)
        keep(lambda tensor, op, group=group: dist.all_reduce(tensor, op, group=group))
        turned = any_bits(torch.float32, 0).view(41, 25).t()
        before = bits(turned)
        dist.all_reduce(turned, dist.ReduceOp.AVG, group=group)
        assert bits(turned) == before
        dist.destroy_process_group(group)


@pytest.mark.parametrize(
    "settings",
    [{}, {"local_group": "auto"}, {"local_group": 1}],
    ids=["plain", "auto", "1"],
)
def test_a_lone_rank_changes_no_bit(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, settings: dict[str, Any]
) -> None:
    ranks.run(1, alone, reducers(2), job, [None, *WIRES] if not settings else ["int8"], settings)


def test_a_lone_rank_of_a_group_changes_no_bit(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    ranks.run(1, in_a_group, reducers(2), [None, "bf16", "int8"])
