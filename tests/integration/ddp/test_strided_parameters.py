"""Parameters and gradients of all strides: the hook gives the same bits as DDP on Gloo. All sums are exact."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach

MODELS = 12


def strided(choice: random.Random) -> torch.Tensor:
    """Return zeros of some shape, permuted and with gaps; sizes of one or none may have any stride."""
    shape = [choice.choice((0, 1, 1, 2, 3, 4)) for _ in range(choice.randint(0, 4))]
    stride, end = [0] * len(shape), 1
    for axis in choice.sample(range(len(shape)), len(shape)):
        stride[axis] = end + choice.randint(0, 2)
        end += stride[axis] * max(0, shape[axis] - 1)
    return torch.zeros(end + 2).as_strided(shape, stride, choice.randint(0, 2))


class Strided(nn.Module):
    """A module with parameters of all strides, and a convolution in channels_last."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choice = random.Random(seed)
        torch.manual_seed(seed)
        self.parts = nn.ParameterList(nn.Parameter(strided(choice)) for _ in range(choice.randint(1, 6)))
        self.factors = [strided(choice) for _ in self.parts]
        self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)

    def forward(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        image = torch.randint(-4, 5, (2, 2, 4, 4), generator=generator).float()
        loss = self.convolution(image.to(memory_format=torch.channels_last)).sum()
        for part in self.parts:
            factor = torch.randint(-9, 10, tuple(reversed(part.shape)), generator=generator).float()
            loss = loss + (part * factor.permute(tuple(reversed(range(part.dim()))))).sum()
        return loss


def compare(rank: Any, reducers: list[str], job: str) -> None:
    with rank.state(reducers, job) as state:
        for seed in range(MODELS):
            settings = {"gradient_as_bucket_view": bool(seed % 2), "bucket_cap_mb": 1e-4}
            on_gloo = DistributedDataParallel(Strided(seed), **settings)
            hooked = DistributedDataParallel(Strided(seed), **settings)
            attach(hooked, state)
            for _ in range(2):  # in the second step DDP has rebuilt its buckets
                for one in (on_gloo, hooked):
                    one.zero_grad()
                    one(rank.number).backward()
                for mine, gloos in zip(hooked.parameters(), on_gloo.parameters(), strict=True):
                    assert torch.equal(mine.grad, gloos.grad), (seed, mine.shape, mine.stride())
                    assert mine.grad.stride() == gloos.grad.stride(), (seed, mine.shape, mine.stride())


def test_results_match_ddp_on_gloo(ranks: Any, reducers: Callable[[int], list[str]], job: str) -> None:
    ranks.run(2, compare, reducers(1), job)
