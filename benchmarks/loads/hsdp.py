"""Training steps with HSDP: shards within a node, copies across nodes, averaged by the backend or by Gloo."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from benchmarks.lab.ranks import Rank
from benchmarks.loads.training import Training
from worker_plugin.process_group import ReductionOptions


class Hsdp(Training):
    """The same training, with its model sharded; gradients and weights are compared as wholes.

    Args:
        rank: this one.
        contenders: "group", over the reducers, and "ring", over Gloo.
        nodes: how many there are, each with the same number of neighbouring ranks.
    """

    def __init__(self, rank: Rank, contenders: Sequence[str], nodes: int) -> None:
        self._shape = (nodes, rank.world_size // nodes)
        # The model returns views of what its layers return, which FSDP2 warns of in every step.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        super().__init__(rank, contenders)

    def _model(self, name: str) -> nn.Module:
        options = ReductionOptions(reducers=self._rank.states["default"].config.reducers)
        mesh = init_device_mesh(
            "cpu",
            self._shape,
            mesh_dim_names=("replicate", "shard"),
            backend_override={"replicate": ("reduction", options)} if name == "group" else None,
        )
        model = copy.deepcopy(self._reference)
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def _weights(self, name: str) -> dict[str, torch.Tensor]:
        return {key: _whole(value) for key, value in self._models[name].state_dict().items()}

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return None if parameter.grad is None else _whole(parameter.grad)

    def _is_exact(self, name: str) -> bool:
        return False  # Gloo adds within the nodes, in its own order


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that all ranks of a node have a shard of; one that is not sharded as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
