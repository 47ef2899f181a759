"""Training steps with HSDP: shards within a node, copies across nodes, averaged by the backend or by Gloo.

Every gradient is compared as a whole with the mean over all ranks' batches, outside of the timed
region, and all copies of a shard must have the same bits after every step.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.lab.ranks import Rank
from benchmarks.loads.models import NARROW, Batch
from benchmarks.loads.training import is_right
from benchmarks.method.paired import Sample, timed
from worker_plugin.process_group import ReductionOptions

_LEARNING_RATE = 1e-3


class Hsdp:
    """Copies of one model that train side by side.

    Args:
        rank: this one.
        contenders: "group", over the reducers, and "ring", over Gloo.
        nodes: how many there are, each with the same number of neighbouring ranks.
        recipe: name of the model, one of NARROW.
    """

    def __init__(
        self, rank: Rank, contenders: Sequence[str], nodes: int, recipe: str = "transformer"
    ) -> None:
        torch.manual_seed(0)
        self._rank = rank
        self._key = 0
        self._last = ""
        self._recipe = NARROW[recipe]
        #: A model that is not sharded, which computes the gradients that the ranks must have had.
        self._reference = self._recipe.build()
        options = ReductionOptions(reducers=rank.states["default"].config.reducers)
        shape, names = (nodes, rank.world_size // nodes), ("replicate", "shard")
        self._meshes = {
            name: init_device_mesh(
                "cpu",
                shape,
                mesh_dim_names=names,
                backend_override={"replicate": ("reduction", options)} if name == "group" else None,
            )
            for name in contenders
        }
        self._models = {name: self._sharded(mesh) for name, mesh in self._meshes.items()}
        self._optimizers = {
            name: torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
            for name, model in self._models.items()
        }

    def _sharded(self, mesh: Any) -> nn.Module:
        # The model returns views of what its layers return, which FSDP2 warns of in every step.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        model = copy.deepcopy(self._reference)
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def prepare(self) -> None:
        """Go on to the next batch."""
        self._key += 1

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one training step."""
        self._last = contender
        model, optimizer = self._models[contender], self._optimizers[contender]
        with torch.no_grad():  # the weights of this step, which the next one changes
            for mine, theirs in zip(self._reference.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs.full_tensor())  # type: ignore[operator]
        batch = self._batch(self._rank.rank)

        def step() -> None:
            optimizer.zero_grad()
            self._recipe.loss(model, batch).backward()
            optimizer.step()

        return timed([step], start_at)

    def verify(self) -> None:
        """Compare every gradient, and the copies of this rank's shards."""
        parts = [self._gradients(rank) for rank in range(self._rank.world_size)]
        model = self._models[self._last]
        for value, column in zip(model.parameters(), zip(*parts, strict=True), strict=True):
            assert value.grad is not None
            if not is_right(value.grad.full_tensor(), column, 1, exact=False):  # type: ignore[attr-defined]
                raise AssertionError(f"rank {self._rank.rank}, {self._last}: a gradient is wrong")
        digest = hashlib.sha256()
        for value in model.parameters():
            digest.update(value.to_local().detach().numpy())  # type: ignore[operator]
        group = self._meshes[self._last]["replicate"].get_group()
        digests = [""] * dist.get_world_size(group)
        dist.all_gather_object(digests, digest.hexdigest(), group=group)
        if len(set(digests)) > 1:
            raise AssertionError(f"{self._last}: the copies of a shard differ, their digests are {digests}")

    def _batch(self, rank: int) -> Batch:
        generator = torch.Generator().manual_seed(self._key * self._rank.world_size + rank)
        return self._recipe.batch(self._recipe.examples, generator)

    def _gradients(self, rank: int) -> list[torch.Tensor]:
        loss = self._recipe.loss(self._reference, self._batch(rank))
        return list(torch.autograd.grad(loss, list(self._reference.parameters())))
