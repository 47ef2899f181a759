"""Broadcasts of whole models, optimizers and objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.exchange import broadcast_async_
from worker_plugin.integrations.horovod.handles import synchronize
from worker_plugin.integrations.horovod.negotiation import Entry
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors by those of rank root_rank.

    Args:
        params: a state_dict, or parameters, or pairs of names and parameters. What is not a tensor is left alone.
        root_rank: whose tensors count.
        process_set: the ranks that take part.

    Raises:
        ValueError: they are nothing of that kind.
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
    """Return rank root_rank's object, pickled on the way by torch.distributed; ranks trust each other."""

    def run(said: list[Any]) -> Any:
        objects = [obj]
        dist.broadcast_object_list(objects, root_rank, group=process_set.group)
        return objects[0]

    negotiation = process_set.negotiation
    same = {"kind": "broadcast_object", "root_rank": root_rank}
    return negotiation.submit(Entry(negotiation.name("broadcast_object", name), same, run)).wait()


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, pickled on the way by torch.distributed; ranks trust each other."""

    def run(said: list[Any]) -> list[Any]:
        objects: list[Any] = [None] * process_set.size()
        dist.all_gather_object(objects, obj, group=process_set.group)
        return objects

    negotiation = process_set.negotiation
    same = {"kind": "allgather_object"}
    gathered: list[Any] = negotiation.submit(
        Entry(negotiation.name("allgather_object", name), same, run)
    ).wait()
    return gathered


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's state and settings by those of rank root_rank.

    Args:
        optimizer: its state may be empty on some ranks.
        root_rank: whose state counts.
        model: not needed; it is here because Horovod has it.
        process_set: the ranks that take part.

    Raises:
        ValueError: it is LBFGS, as in Horovod.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = broadcast_object(optimizer.state_dict(), root_rank, None, process_set)
    if dist.get_rank() != root_rank:
        optimizer.load_state_dict(state)
