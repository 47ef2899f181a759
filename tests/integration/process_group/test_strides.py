"""Tensors of all strides and offsets, and views of all kinds: summed as by Gloo, or refused before they are issued.

Both ranks are in this process, so hypothesis drives them together. All sums are exact in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reduction.errors import ConfigError

from worker_plugin import ReductionState
from worker_plugin.process_group import ReductionOptions
from worker_plugin.process_group.register import make_group

RANKS = range(2)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool)
OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
#: The Gloo operation on uint8 that corresponds to an operation on bool, which Gloo does not support.
OF_BOOL = {"SUM": "MAX", "MAX": "MAX", "PRODUCT": "MIN", "MIN": "MIN"}

SIZES = st.sampled_from((2, 3, 1, 4, 2, 3, 1, 4, 2, 3, 0))


@dataclass(frozen=True)
class Case:
    way: str
    wire_dtype: str | None
    dtype: torch.dtype
    op: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    #: Whether the strides show that only elements repeated by `expand` share memory.
    is_nested: bool
    #: "plain", "negative bit", "inference", or "autograd": the result of a differentiable operation.
    kind: str
    seed: int

    def tensor(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory with a rank's values, and the tensor as a view of it."""
        generator = torch.Generator().manual_seed(2 * self.seed + rank)
        low, high = (0, 2) if self.dtype is torch.bool else (0 if self.dtype is torch.uint8 else -4, 5)
        with torch.inference_mode(self.kind == "inference"):
            memory = torch.randint(low, high, (self.end + 3,), generator=generator).to(self.dtype)
            if self.kind == "autograd":
                memory = memory.requires_grad_() * 1
            view = torch._neg_view(memory) if self.kind == "negative bit" else memory
            return memory, view.as_strided(self.shape, self.stride, self.offset)

    @property
    def end(self) -> int:
        return (
            self.offset
            + 1
            + sum(n * max(0, size - 1) for n, size in zip(self.stride, self.shape, strict=True))
        )

    @property
    def places(self) -> torch.Tensor:
        """The positions of the elements in memory."""
        return torch.arange(self.end + 3).as_strided(self.shape, self.stride, self.offset)

    @property
    def places_once(self) -> torch.Tensor:
        """The positions without repetitions by `expand`."""
        return self.places[tuple(slice(None if n else 1) for n in self.stride)]

    @property
    def is_aliased(self) -> bool:
        return len(self.places_once.unique()) < self.places_once.numel()

    @property
    def is_dense(self) -> bool:
        """Whether Gloo, which takes the tensor's number of elements from the first one on, sums the right ones."""
        unique = self.places.unique()
        return len(unique) == 0 or int(unique[-1] - unique[0]) == len(unique) - 1


@st.composite
def nested(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return shape and stride of a tensor that was permuted, sliced with steps, and expanded."""
    shape = draw(st.lists(SIZES, max_size=4))
    stride, end = [0] * len(shape), 1
    gap = st.just(0) if draw(st.booleans()) else st.integers(0, 2)
    for axis in draw(st.permutations(range(len(shape)))):
        if shape[axis] <= 1:
            stride[axis] = draw(st.integers(0, 5))
        elif draw(st.integers(0, 5)):
            stride[axis] = end + draw(gap)
            end += stride[axis] * (shape[axis] - 1)
    return tuple(shape), tuple(stride), True


@st.composite
def any_strides(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    shape = draw(st.lists(SIZES, max_size=4))
    return tuple(shape), tuple(draw(st.integers(0, 6)) for _ in shape), False


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype, op = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(OPS))
    kinds = ["plain", "inference"]
    kinds += ["autograd"] * dtype.is_floating_point
    kinds += ["negative bit"] * (dtype not in (torch.uint8, torch.bool))
    shape, stride, is_nested = draw(nested() | any_strides())
    return Case(
        draw(st.sampled_from(("state", "backend"))),
        draw(st.sampled_from((None, "bf16"))),
        dtype,
        "SUM" if op == "AVG" and dtype not in FLOATS else op,
        shape,
        stride,
        draw(st.integers(0, 5)),
        is_nested,
        draw(st.sampled_from(kinds)),
        draw(st.integers(0, 1 << 30)),
    )


class World:
    """Both ranks, with Gloo, states, and groups of the backend."""

    def __init__(self, reducers: list[str], cleanup: ExitStack) -> None:
        store, timeout = dist.HashStore(), timedelta(seconds=60)

        def of_both(make: Callable[[int], Any]) -> list[Any]:
            with ThreadPoolExecutor(len(RANKS)) as pool:  # Gloo's ranks wait for each other
                return list(pool.map(make, RANKS))

        def gloo(rank: int) -> dist.ProcessGroupGloo:
            return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, len(RANKS), timeout)

        def group(rank: int, wire_dtype: str | None) -> Any:
            options = SimpleNamespace(
                store=dist.PrefixStore(f"group {wire_dtype}", store),
                group_rank=rank,
                group_size=len(RANKS),
                timeout=timeout,
                global_ranks_in_group=[*RANKS],
                group_id=f"{wire_dtype}",
            )
            made = make_group(options, ReductionOptions(reducers=reducers, wire_dtype=wire_dtype))
            cleanup.callback(made.shutdown)
            return made

        def state(rank: int, wire_dtype: str | None) -> ReductionState:
            own = dist.PrefixStore(f"state {wire_dtype}", store)
            made = ReductionState(
                reducers, store=own, rank=rank, world_size=len(RANKS), wire_dtype=wire_dtype
            )
            return cleanup.enter_context(made)

        self._gloo = of_both(gloo)
        self._groups, self._states = (
            {wire: of_both(lambda rank, wire=wire, make=make: make(rank, wire)) for wire in (None, "bf16")}
            for make in (group, state)
        )

    def gloos(self, case: Case) -> tuple[torch.Tensor, int]:
        """Return Gloo's result for dense copies of the tensors, and the increment of their version counter."""
        dense = [case.tensor(rank)[1].detach().resolve_neg().clone() for rank in RANKS]
        dense = [
            one.contiguous().to(torch.uint8 if case.dtype is torch.bool else case.dtype) for one in dense
        ]
        before = dense[0]._version
        op = OF_BOOL[case.op] if case.dtype is torch.bool else case.op
        works = [group.allreduce([one], options_of(op)) for group, one in zip(self._gloo, dense, strict=True)]
        for work in works:
            work.wait()
        return dense[0].to(case.dtype), dense[0]._version - before

    def issue(self, case: Case, rank: int, tensor: torch.Tensor) -> Any:
        """Issue an all-reduce on one rank; return an object with `wait`."""
        if case.way == "state":
            return self._states[case.wire_dtype][rank].all_reduce(tensor, getattr(dist.ReduceOp, case.op))
        return self._groups[case.wire_dtype][rank].allreduce([tensor], options_of(case.op))


def options_of(op: str) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    return options


@pytest.fixture
def world(reducers: Callable[[int], list[str]]) -> Iterator[World]:
    with ExitStack() as cleanup:
        yield World(reducers(1), cleanup)


def check(world: World, case: Case) -> None:
    memories, tensors = zip(*map(case.tensor, RANKS), strict=True)
    before = [memory.clone() for memory in memories]
    versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    try:
        waited = [world.issue(case, 0, tensors[0])]
    except ConfigError:
        # Rank 1 issues nothing: if rank 0 had issued anything, the next case would fail.
        assert may_be_refused(case), "refused"
        assert torch.equal(memories[0], before[0])
        return
    waited.append(world.issue(case, 1, tensors[1]))
    for one in waited:
        one.wait()
    assert not must_be_refused(case), "not refused"
    expected, counted = world.gloos(case)
    for rank in RANKS:
        assert torch.equal(tensors[rank].resolve_neg(), expected)
        untouched = torch.ones(len(before[rank]), dtype=torch.bool)
        untouched[case.places.flatten()] = False
        assert torch.equal(memories[rank][untouched], before[rank][untouched]), "other memory has changed"
        if not tensors[rank].is_inference():
            assert tensors[rank]._version - versions[rank] == counted


def must_be_refused(case: Case) -> bool:
    if case.way == "state":
        tensor = case.tensor(0)[1]
        return not tensor.is_contiguous() or tensor.is_neg()
    return case.is_aliased


def may_be_refused(case: Case) -> bool:
    """Return whether an error is allowed: never for what Gloo sums, or for what slices and `expand` can make."""
    return must_be_refused(case) or not (case.way == "state" or case.is_nested or case.is_dense)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.full)])
def test_sums_match_gloo_or_are_refused(world: World, count: int) -> None:
    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case: Case) -> None:
        check(world, case)

    run()
