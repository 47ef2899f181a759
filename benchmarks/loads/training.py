"""The training workload on shaped links: training steps of a small model.

The gradients are real numbers that change in each step with the optimizer and a new batch, as in
any training. After the step and outside the timed region, every rank computes the gradients of all
ranks from their batches and compares them, and all ranks compare their weights.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lab.ranks import Rank
from benchmarks.loads.models import NARROW
from benchmarks.method.paired import Sample, timed
from worker_plugin import reduction_hook

_LEARNING_RATE = 1e-3
#: The relative epsilon of float32. One rounding is off by at most half of it.
_EPSILON = 2.0**-23


class Training:
    """Copies of one model that train side by side: over our states, DDP's own ring, and no communication ("noop").

    Args:
        rank: this rank.
        contenders: names of `rank.states`, "ring" and "noop".
        recipe: name of the model, one of NARROW.
    """

    def __init__(self, rank: Rank, contenders: Sequence[str], recipe: str = "transformer") -> None:
        torch.manual_seed(0)
        self._rank = rank
        self._key = 0
        self._last = ""
        #: A model without DDP, which recomputes each rank's gradients.
        self._recipe = NARROW[recipe]
        self._reference = self._recipe.build()
        self._models = {name: self._model(name) for name in contenders}
        self._optimizers = {
            name: torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
            for name, model in self._models.items()
        }
        #: The weights of each model before its next step.
        self._before = {name: copy.deepcopy(self._models[name].module.state_dict()) for name in contenders}

    def _model(self, name: str) -> nn.Module:
        """Return a contender's copy of the reference."""
        # All ranks already have the same weights. Broadcasting them over slow links would take longer
        # than many steps.
        model = DistributedDataParallel(copy.deepcopy(self._reference), init_sync=False)
        if name == "noop":
            model.register_comm_hook(None, noop_hook)
        elif name != "ring":
            model.register_comm_hook(self._rank.states[name], reduction_hook)
        return model

    def prepare(self) -> None:
        """Advance to the next batch."""
        self._key += 1

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one training step."""
        self._last = contender
        model, optimizer = self._models[contender], self._optimizers[contender]
        batch = self._recipe.batch_of(self._key, self._rank.rank, self._rank.world_size)

        def step() -> None:
            optimizer.zero_grad()
            self._recipe.loss(model, batch).backward()
            optimizer.step()

        return timed([step], start_at)

    def verify(self) -> None:
        """Compare every whole gradient, and keep the new weights, which must be the same on all ranks.

        Gradients over reducers must have the bits of the sum in rank order. In hierarchical mode they
        must have the bits of the sum over the nodes of each node's own sum. A ring adds in another
        order, so it may differ by the rounding errors of both orders.
        """
        name = self._last
        self._reference.load_state_dict(self._before[name])
        ranks = [self._rank.rank] if name == "noop" else range(self._rank.world_size)
        gradients = [self._gradients(rank) for rank in ranks]
        node = self._rank.local_size if name == "hierarchical" else 1
        names = (parameter for parameter, _ in self._reference.named_parameters())
        values = self._models[name].parameters()
        for parameter, value, parts in zip(names, values, zip(*gradients, strict=True), strict=True):
            if value.grad is None or not is_right(value.grad, parts, node, exact=name != "ring"):
                raise AssertionError(f"rank {self._rank.rank}, {name}: the gradient of {parameter} is wrong")
        with torch.no_grad():
            for key, value in self._models[name].module.state_dict().items():
                self._before[name][key].copy_(value)
        if name != "noop":
            self._compare_weights()

    def _compare_weights(self) -> None:
        digest = hashlib.sha256()
        for value in self._before[self._last].values():
            digest.update(value.numpy())
        digests = [""] * self._rank.world_size
        dist.all_gather_object(digests, digest.hexdigest())
        if len(set(digests)) > 1:
            raise AssertionError(f"{self._last}: the ranks' weights differ, their digests are {digests}")

    def _gradients(self, rank: int) -> list[torch.Tensor]:
        batch = self._recipe.batch_of(self._key, rank, self._rank.world_size)
        loss = self._recipe.loss(self._reference, batch)
        return list(torch.autograd.grad(loss, list(self._reference.parameters())))


def is_right(gradient: torch.Tensor, parts: Sequence[torch.Tensor], node: int, *, exact: bool) -> bool:
    """Return whether a gradient is the mean of all ranks' parts.

    Args:
        gradient: the gradient to check.
        parts: each rank's part, in rank order.
        node: ranks per node; each node adds up its own parts first.
        exact: whether it must have the same bits, or may differ by the rounding errors of another order.
    """
    nodes = [_fold(parts[first : first + node]) for first in range(0, len(parts), node)]
    expected = _fold(nodes) / len(parts)
    if exact:
        return torch.equal(gradient, expected)
    # Both orders have n - 1 additions and a division, each off by at most half an epsilon of
    # `largest`.
    largest = sum(part.abs() for part in parts) / len(parts)
    return bool(((gradient - expected).abs() <= len(parts) * _EPSILON * largest).all())


def _fold(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    result = parts[0].clone()
    for part in parts[1:]:
        result += part
    return result
