"""Error feedback for HSDP (FSDP2): which of a group's all-reduces carry the same gradients in each step.

An all-reduce of a group carries no information about its tensor. But FSDP2 all-reduces across nodes what it has
reduce-scattered within the node, and lets each module have its own reduce-scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from worker_plugin.process_group.register import all_reducer_of
from worker_plugin.state import ReductionState
from worker_plugin.tensors.feedback import Origin

#: The name in torch 2.13, and the one in older versions.
reduce_scatter: Callable[..., dist.Work | None] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class _ReduceScatter:
    """Reduce-scatters the gradients of one module as FSDP2 does, and records the result's origin.

    Args:
        module: its module.
        numel: of the result, if all parameters of the module have a gradient. A result of another size covers only some
            of them, which may differ in each step, so it gets no error feedback.
        origins: maps tensors to their origins; the result is added.
    """

    def __init__(self, module: nn.Module, numel: int, origins: Any) -> None:
        self._module, self._numel, self._origins = module, numel, origins
        #: Stand-in for the result of each step, with its size and device but without memory.
        self._stand_in: torch.Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """See torch's `Comm`."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """See torch's `ReduceScatter`."""
        if output_tensor.numel() == self._numel:
            if self._stand_in is None:
                self._stand_in = output_tensor.new_empty(1).expand(self._numel)
            self._origins[output_tensor] = Origin(self._module, 0, [self._stand_in])
        return reduce_scatter(output_tensor, input_tensor, op, group, async_op)


def add_error_feedback(model: nn.Module, mesh: DeviceMesh) -> ReductionState:
    """Give the lossy sums of an HSDP model error feedback; return the state that performs them.

    Call this once, after `fully_shard`, on all ranks. What a lossy `wire_dtype` leaves out of a module's gradients is
    added to them in the next step, as for DDP. It belongs in each rank's checkpoint (`state.state_dict()`). If only
    some parameters of a module have gradients in a step, that module gets no error feedback in that step. Without a
    lossy `wire_dtype` nothing changes. This replaces FSDP2's `set_custom_reduce_scatter`.

    Args:
        model: to which FSDP2's `fully_shard` was applied.
        mesh: the one given to `fully_shard`, of (nodes, ranks of a node), with the backend "reduction" for the first
            dimension.

    Raises:
        ConfigError: the model is not sharded, or over another mesh, or the backend is another one.
    """
    if mesh.ndim != 2 or mesh.size(1) == 1:
        raise ConfigError(
            f"the mesh is {tuple(mesh.shape)}: error feedback is for meshes of two dimensions, (nodes, ranks of a "
            f"node), with several ranks in the second one. Use DDP where each rank has a whole copy"
        )
    all_reducer = all_reducer_of(mesh.get_group(0))
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ConfigError(
            f"a {type(model).__name__} is not sharded: call it after fully_shard(model, mesh=mesh)"
        )
    for module in modules:
        own = _own_parameters(module)
        if others := {one.device_mesh for one in own} - {mesh}:
            raise ConfigError(f"{type(module).__name__} is sharded over {others.pop()}, not over {mesh}")
        numel = sum(_padded_numel(one) for one in own)
        module.set_custom_reduce_scatter(_ReduceScatter(module, numel, all_reducer.origins))  # type: ignore[arg-type]
        all_reducer.state.add_module(module)
    return all_reducer.state


def _own_parameters(module: FSDPModule) -> list[DTensor]:
    """Return the parameters whose gradients FSDP2 reduces together for a module, excluding nested such modules."""
    assert isinstance(module, nn.Module)
    within = (other for child in module.children() for other in child.modules())
    inside = {id(one) for other in within if isinstance(other, FSDPModule) for one in other.parameters()}
    return [
        parameter
        for parameter in module.parameters()
        if isinstance(parameter, DTensor) and parameter.requires_grad and id(parameter) not in inside
    ]


def _padded_numel(parameter: DTensor) -> int:
    """Return the number of elements of a rank's shard of a gradient, with all ranks' shards padded to the same size."""
    placement = parameter.placements[1]
    assert isinstance(placement, Shard)
    length = parameter.shape[placement.dim]
    rest = math.prod(parameter.shape) // length if length else 0
    return -(-length // parameter.device_mesh.size(1)) * rest
