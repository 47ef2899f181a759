"""Broadcasts of whole models, optimizers and objects; sparse sums, join and barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.collectives import allgather_async, broadcast_async_
from worker_plugin.integrations.horovod.handles import Average, Operation, synchronize
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors with those of rank root_rank.

    Args:
        params: a state_dict, or parameters, or pairs of names and parameters. Values that are not tensors are left
            alone.
        root_rank: the rank whose tensors are used.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is none of these.
    """
    if isinstance(params, Mapping):
        pairs: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, str)):
        pairs = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [
        broadcast_async_(tensor, root_rank, name, process_set)
        for name, tensor in pairs
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return rank root_rank's object, pickled for transfer by torch.distributed. Ranks trust each other."""
    objects = [obj]

    def run(_: object) -> None:
        dist.broadcast_object_list(objects, root_rank, process_set.negotiation.group)

    process_set.negotiation.issue("broadcast_object", name, run, root_rank=root_rank).wait()
    return objects[0]


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, pickled for transfer by torch.distributed. Ranks trust each other."""
    objects: list[Any] = [None] * process_set.size()

    def run(_: object) -> None:
        dist.all_gather_object(objects, obj, process_set.negotiation.group)

    process_set.negotiation.issue("allgather_object", name, run).wait()
    return objects


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's state and settings with those of rank root_rank.

    Args:
        optimizer: its state may be empty on some ranks.
        root_rank: the rank whose state is used.
        model: ignored; present because Horovod has it.
        process_set: the ranks that take part.

    Raises:
        ValueError: the optimizer is LBFGS, as in Horovod.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = broadcast_object(optimizer.state_dict(), root_rank, None, process_set)
    if dist.get_rank() != root_rank:
        optimizer.load_state_dict(state)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Operation | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Add up the sparse tensors of all ranks; return immediately, with a function that waits for the result.

    Indices and values of all ranks are gathered, as in Horovod. None of it goes through reducers.
    """
    tensor = tensor.coalesce() if tensor.is_sparse else tensor.to_sparse()
    names = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    indices = allgather_async(tensor.indices().t().contiguous(), names[0], process_set)
    values = allgather_async(tensor.values(), names[1], process_set)

    def wait() -> torch.Tensor:
        total = torch.sparse_coo_tensor(indices.wait().t(), values.wait(), tensor.shape)
        return total if op not in (None, Average) else total / process_set.size()

    return wait


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once all ranks have called it."""
    process_set.negotiation.issue("barrier", None).wait()


def join(device: int = -1) -> int:
    """Call this when this rank's data is used up. It adds zeros to the others' all-reduces until all have joined.

    Returns:
        The last rank to join.
    """
    return int(global_process_set.negotiation.issue("join", "all").wait())
