"""The DDP workload without an optimizer, run by every rank: DDP steps whose gradients are checked.

The model computes with small integers only. Two weights of each row and column are 1 or -1, and the
others are 0, which makes no difference to the cost of a dense product. Inputs and targets are
integers, too. So all gradients are exact in float32 in any order of addition, and can be compared as
a whole.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lab.ranks import Rank
from benchmarks.method.paired import Sample, timed
from worker_plugin import reduction_hook

_DEPTH = 4
#: Number of steps after which the gradients repeat. The loss of a step is scaled by a number between
#: 1 and this.
_KEYS = 64


class DdpStep:
    """Copies of one model under DDP: our hook on each transport, DDP's own all-reduce, no communication."""

    def __init__(self, rank: Rank, width: int, batch: int) -> None:
        self._rank = rank
        self._key = 0
        self._last = ""
        model = _model(width).to(rank.device)
        batches = [_batch(other, width, batch, rank.device) for other in range(rank.world_size)]
        self._input, self._target = batches[rank.rank]
        gradients = [_gradients(model, *batch_of_rank) for batch_of_rank in batches]
        self._local = gradients[rank.rank]
        self._average = [sum(parts) / rank.world_size for parts in zip(*gradients, strict=True)]
        device_ids = [rank.device.index] if rank.device.type == "cuda" else None
        # All ranks have built the same model. With init_sync, rank 0 would send each copy to all other ranks, which
        # took 110 s and more with four ranks, links of 30 Mbit/s and 8 MB.
        self._models = {
            name: DistributedDataParallel(copy.deepcopy(model), device_ids=device_ids, init_sync=False)
            for name in (*rank.states, "ring", "noop")
        }
        for name, state in rank.states.items():
            self._models[name].register_comm_hook(state, reduction_hook)
        self._models["noop"].register_comm_hook(None, noop_hook)

    def prepare(self) -> None:
        """Choose different gradients for the next step."""
        self._key = self._key % _KEYS + 1

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one step without an optimizer, whose cost would be the same for all contenders."""
        self._last = contender
        model = self._models[contender]

        def step() -> None:
            model.zero_grad()
            _loss(model, self._input, self._target, self._key).backward()
            self._rank.synchronize()

        return timed([step], start_at)

    def verify(self) -> None:
        """Compare every gradient with the average over the ranks, or for "noop" with the rank's own gradient."""
        expected = self._local if self._last == "noop" else self._average
        named = self._models[self._last].named_parameters()
        for (name, parameter), unscaled in zip(named, expected, strict=True):
            if parameter.grad is None or not torch.equal(parameter.grad, unscaled * self._key):
                raise AssertionError(f"rank {self._rank.rank}, {self._last}: the gradient of {name} is wrong")


def _model(width: int) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(_DEPTH):
        linear = nn.Linear(width, width)
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.zero_()
            for value in (1.0, -1.0):
                columns = torch.randperm(width, generator=generator)
                linear.weight[torch.arange(width), columns] += value
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def _batch(rank: int, width: int, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    shape = (batch, width)
    inputs = torch.randint(-3, 4, shape, generator=generator).float()
    targets = torch.randint(-1, 2, shape, generator=generator).float()
    return inputs.to(device), targets.to(device)


def _loss(model: nn.Module, inputs: torch.Tensor, target: torch.Tensor, scale: int) -> torch.Tensor:
    loss: torch.Tensor = (model(inputs) * target).sum() * scale
    return loss


def _gradients(model: nn.Module, inputs: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(_loss(model, inputs, target, 1), list(model.parameters()))
    return [gradient.detach() for gradient in gradients]


def gradient_bytes(width: int) -> int:
    """Return the total bytes of the model's gradients."""
    return _DEPTH * (width + 1) * width * 4
