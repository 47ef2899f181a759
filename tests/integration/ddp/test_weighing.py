"""Ranks with different numbers of samples get the gradient of a single process with all the samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reduction.errors import ConfigError
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach
from worker_plugin.riders.weighing import SAMPLES_MAX

#: Number of samples of each rank, by step.
BATCHES = [(3, 1, 8, 4), (0, 7, 1, 1), (2, 0, 0, 0), (5, 5, 5, 5)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(BATCHES[step][rank], 4, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(module: nn.Module, data: torch.Tensor) -> torch.Tensor:
    if not len(data):
        return 0.0 * module(torch.zeros(1, 4)).sum()
    return module(data).square().mean()


def difference(ddp: nn.Module, alone: nn.Module) -> float:
    """Return the largest difference of gradients, relative to the largest gradient of the same tensor."""
    pairs: Any = zip(ddp.parameters(), alone.parameters(), strict=True)
    return max(float((one.grad - other.grad).abs().max() / other.grad.abs().max()) for one, other in pairs)


def weighted(rank: Any, reducers: list[str], job: str, settings: dict[str, Any]) -> list[float]:
    """Return the difference of the gradients in each step."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    state = attach(ddp, rank.state(reducers, job, **settings))
    differences = []
    for step in range(len(BATCHES)):
        state.weigh(BATCHES[step][rank.number])
        ddp.zero_grad()
        loss_of(ddp, batch_of(rank.number, step)).backward()
        alone = model()
        loss_of(alone, torch.cat([batch_of(other, step) for other in range(rank.world_size)])).backward()
        differences.append(difference(ddp, alone))
    return differences


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"transport": "tcp"}, 1e-6),
        ({"transport": "grpc"}, 1e-6),
        ({"wire_dtype": "bf16"}, 1e-2),
        ({"local_group": 2}, 1e-6),
    ],
)
def test_gradients_match_those_of_one_process(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, settings: dict[str, Any], limit: float
) -> None:
    found = ranks.run(4, weighted, reducers(2), job, settings)
    assert found == [found[0]] * 4
    assert max(found[0]) < limit


def with_join(rank: Any, reducers: list[str], job: str) -> float:
    """Give each rank one batch more than the previous rank; ranks that have finished count as having empty batches."""
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.state(reducers, job))
    worst = 0.0
    with ddp.join():
        for step in range(1 + rank.number):
            state.weigh(2 + rank.number)
            ddp.zero_grad()
            data = [torch.full((2 + other, 4), 1.0 + other) for other in range(rank.world_size)]
            loss_of(ddp, data[rank.number]).backward()
            alone = model()
            loss_of(alone, torch.cat([one for other, one in enumerate(data) if other >= step])).backward()
            worst = max(worst, difference(ddp, alone))
    return worst


def test_ranks_that_have_no_more_data(ranks: Any, reducers: Callable[[int], list[str]], job: str) -> None:
    assert max(ranks.run(3, with_join, reducers(1), job)) < 1e-5


def wrong(rank: Any, reducers: list[str], job: str) -> tuple[list[str], str, str]:
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.state(reducers, job, close_timeout_s=1.0))
    given = [-1, math.nan, math.inf, SAMPLES_MAX + 1, "2", True, None]
    texts = [type(rank.error_of(lambda samples=samples: state.weigh(samples))).__name__ for samples in given]
    state.weigh(0)
    error = rank.error_of(loss_of(ddp, torch.ones(1, 4)).backward)
    return texts, type(state.error).__name__, str(error)


def test_invalid_weights_and_no_samples_at_all(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    for texts, kind, text in ranks.run(2, wrong, reducers(1), job):
        assert texts == [ConfigError.__name__] * 7
        assert kind in ("ConfigError", "WorkerFailed")
        assert "state.weigh(0) was called on all ranks" in text
