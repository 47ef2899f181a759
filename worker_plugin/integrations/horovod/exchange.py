"""Collectives that add nothing, which go over Gloo or NCCL: all-gather, broadcast, all-to-all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.all_reduce import allreduce
from worker_plugin.integrations.horovod.handles import (
    Handle,
    Tensor,
    bytes_of,
    dtype_of,
    group_names,
    refuse_joined,
    single,
    synchronize,
)
from worker_plugin.integrations.horovod.negotiation import Entry
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Join the tensors of all ranks along the first dimension, which may differ; return a handle at once."""
    return single(submit_all_gather(tensor, name, process_set))


def submit_all_gather(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Entry:
    """Issue an all-gather; the result is a new tensor."""
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be gathered: pass tensor.reshape(1)")
    negotiation = process_set.negotiation
    same = {
        "kind": "allgather",
        "dtype": dtype_of(tensor),
        "rest": list(tensor.shape[1:]),
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> Tensor:
        refuse_joined(said)
        padded = tensor.new_zeros(max(said), *tensor.shape[1:])
        padded[: len(tensor)] = tensor.detach()
        parts = [torch.empty_like(padded) for _ in said]
        dist.all_gather([bytes_of(part) for part in parts], bytes_of(padded), group=process_set.group)
        return torch.cat([part[:count] for part, count in zip(parts, said, strict=True)])

    return negotiation.submit(Entry(negotiation.name("allgather", name), same, run, own=len(tensor)))


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.count, ctx.process_set = len(tensor), process_set
        result: Tensor = synchronize(allgather_async(tensor, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        counts = synchronize(allgather_async(torch.tensor([ctx.count]), None, ctx.process_set))
        begin = int(counts[: ctx.process_set.rank()].sum())
        reduced = allreduce(gradient, process_set=ctx.process_set)  # the mean, as in Horovod
        return reduced[begin : begin + ctx.count], None, None


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the tensors of all ranks joined along the first dimension; gradients flow back."""
    result: Tensor = _AllGather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
    return result


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Do `allgather` for each tensor; return a handle at once."""
    names = group_names(tensors, name)
    return Handle(
        [submit_all_gather(one, its, process_set) for one, its in zip(tensors, names, strict=True)], list
    )


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Do `allgather` for each tensor."""
    names = group_names(tensors, name)
    return [allgather(one, its, process_set) for one, its in zip(tensors, names, strict=True)]


def _submit_broadcast(
    tensor: Tensor, output: Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> Entry:
    negotiation = process_set.negotiation
    if root_rank not in process_set._known():
        raise ValueError(f"root_rank is {root_rank}, which is not in {process_set}")
    same = {
        "kind": "broadcast",
        "dtype": dtype_of(tensor),
        "shape": list(tensor.shape),
        "root_rank": root_rank,
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> Tensor:
        refuse_joined(said)
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(bytes_of(work), root_rank, process_set.group)
        if output is None:
            return work
        output.detach().copy_(work)
        return output

    return negotiation.submit(Entry(negotiation.name("broadcast", name), same, run))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Hand out rank root_rank's tensor as a new one; return a handle at once."""
    return single(_submit_broadcast(tensor, None, root_rank, name, process_set))


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Hand out rank root_rank's tensor, in place; return a handle at once."""
    return single(_submit_broadcast(tensor, tensor, root_rank, name, process_set))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        result: Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        reduced = allreduce(gradient, process_set=ctx.process_set)  # the mean, as in Horovod
        return reduced * (dist.get_rank() == ctx.root_rank), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return rank root_rank's tensor; gradients flow back to that rank."""
    result: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite a tensor by rank root_rank's, and return it."""
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send a part of a tensor to each rank; return a handle at once, of the parts received and their lengths.

    Raises:
        ValueError: the parts do not make up the tensor.
    """
    negotiation = process_set.negotiation
    count = process_set.size()
    if isinstance(splits, Tensor) and splits.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"splits are {splits.dtype}; they must be integers")
    if splits is None:
        if not tensor.dim() or len(tensor) % count:
            raise ValueError(
                f"a tensor of shape {list(tensor.shape)} has no {count} equal parts: pass splits"
            )
        parts = [len(tensor) // count] * count
    else:
        parts = [int(one) for one in splits]
    if len(parts) != count or min(parts) < 0 or sum(parts) > len(tensor):
        raise ValueError(
            f"splits are {parts}; they must be {count} lengths with a sum of at most {len(tensor)}"
        )
    same = {
        "kind": "alltoall",
        "dtype": dtype_of(tensor),
        "rest": list(tensor.shape[1:]),
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> tuple[Tensor, Tensor]:
        refuse_joined(said)
        received = [lengths[process_set.rank()] for lengths in said]
        output = tensor.new_empty(sum(received), *tensor.shape[1:])
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        dist.all_to_all_single(
            bytes_of(output),
            bytes_of(tensor.detach()[: sum(parts)].contiguous()),
            [row * length for length in received],
            [row * length for length in parts],
            group=process_set.group,
        )
        kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
        return output, torch.tensor(received, dtype=kind)

    return single(negotiation.submit(Entry(negotiation.name("alltoall", name), same, run, own=parts)))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        back, _lengths = synchronize(alltoall_async(gradient, ctx.received, None, ctx.process_set))
        return back, None, None, None


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of a tensor to each rank; return the parts received and, with splits, their lengths."""
    return _AllToAll.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
