"""Ranks whose weights differ detect it in the same step, whatever connects them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reduction.errors import CollectiveMismatch, ReplicasDiffer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import ReductionState, attach
from worker_plugin.hierarchy.exchange import Exchange
from worker_plugin.riders.drift import watch


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def train(rank: Any, ddp: nn.Module, steps: int, *, flip_in: int = 0) -> tuple[int, Exception | None]:
    """Train; return the step of the first error. A bit of rank 1's last layer is flipped in step `flip_in`."""
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for step in range(1, steps + 1):
        if step == flip_in and rank.number == 1:
            with torch.no_grad():
                list(ddp.parameters())[-1].view(torch.int32)[0] ^= 1 << 20
        optimizer.zero_grad()
        loss = ddp(torch.randn(6, 4)).square().mean()
        if (error := rank.error_of(loss.backward)) is not None:
            return step, error
        optimizer.step()
    return steps, None


def drifted(
    rank: Any, reducers: list[str], job: str, settings: dict[str, Any]
) -> tuple[int, str, str, int, Exception | None]:
    if rank.number == 3:
        has_results_late(rank)
    ddp = DistributedDataParallel(model())
    state = rank.cleanup.enter_context(ReductionState(reducers, job=job, close_timeout_s=1.0, **settings))
    attach(ddp, state)
    state.watch(ddp, every=4)
    step, error = train(rank, ddp, 20, flip_in=6)
    kind = type(state.error).__name__
    state.restart()
    ddp.load_state_dict(rank_0s(ddp))
    after, none = train(rank, ddp, 9)
    return step, kind, str(error), after, none


def has_results_late(rank: Any) -> None:
    """Make a rank in hierarchical mode get each sum later than all others."""
    gather = Exchange.gather

    def late(*arguments: Any) -> torch.Tensor:
        gathered = gather(*arguments)
        time.sleep(0.1)
        return gathered

    rank.cleanup.callback(setattr, Exchange, "gather", gather)
    Exchange.gather = late  # type: ignore[method-assign]


def rank_0s(ddp: nn.Module) -> dict[str, torch.Tensor]:
    weights = ddp.state_dict()
    for tensor in weights.values():
        dist.broadcast(tensor, 0)
    return weights


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (3, {"transport": "tcp"}),
        (3, {"transport": "grpc", "wire_dtype": "bf16"}),
        (2, {"wire_dtype": "int8", "io_process": True}),
        (4, {"local_group": 2}),
    ],
)
def test_a_flipped_bit_is_found(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, count: int, settings: dict[str, Any]
) -> None:
    most = "0" if count == 2 else ", ".join(str(rank) for rank in range(count) if rank != 1)
    for step, kind, text, after, none in ranks.run(count, drifted, reducers(2), job, settings):
        assert (step, kind, after, none) == (9, ReplicasDiffer.__name__, 9, None)
        assert f"ranks 1 do not have the weights of ranks {most}: 3.bias differ in step 8" in text
        assert "4 steps before they were alike" in text


def with_join(rank: Any, reducers: list[str], job: str) -> int:
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.state(reducers, job))
    state.watch(ddp, every=1)
    with ddp.join():
        for _ in range(2 + 2 * rank.number):
            ddp(torch.randn(6, 4)).square().mean().backward()
    with ddp.no_sync():
        ddp(torch.randn(6, 4)).square().mean().backward()
    steps, error = train(rank, ddp, 4)
    assert error is None, error
    return steps


def test_nothing_is_compared_while_some_have_no_more_data(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    assert ranks.run(2, with_join, reducers(1), job) == [4, 4]


def unlike(rank: Any, reducers: list[str], job: str) -> str:
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.state(reducers, job, close_timeout_s=1.0))
    state.watch(ddp, every=2 + rank.number)
    train(rank, ddp, 6)
    return type(state.error).__name__


def test_ranks_that_compare_in_different_steps(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    assert ranks.run(2, unlike, reducers(1), job) == [CollectiveMismatch.__name__] * 2


def without_a_state(rank: Any, half: bool) -> str | None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])] if half else []
    group = groups[rank.number % 2] if half else None
    own = model()
    if half and rank.number in (1, 3):
        nn.init.ones_(own[0].weight)  # like another part of a model
    comparing = watch(own, every=2, group=group, optimizer=torch.optim.Adam(own.parameters()))
    for step in range(4):
        if step == 1 and rank.number == 2:
            nn.init.zeros_(own[3].bias)
        if (error := rank.error_of(comparing.step)) is not None:
            return str(error)
    return None


@pytest.mark.parametrize("half", [False, True])
def test_any_process_group_can_compare(ranks: Any, half: bool) -> None:
    found = ranks.run(4, without_a_state, half)
    for rank, text in enumerate(found):
        if half and rank % 2:
            assert text is None
        else:
            others = "0" if half else "0, 1, 3"
            assert f"ranks 2 do not have the weights of ranks {others}: 3.bias differ in step 2" in text
