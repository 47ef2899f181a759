"""Collectives of tensors: all-reduces go through the reducers, those without a reduction over Gloo or NCCL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.handles import (
    Average,
    Compression,
    Compressor,
    Operation,
    Sum,
    Tensor,
    copy_of,
    dense,
    differentiable,
    grouped,
    on_a_copy,
    said_of,
    synchronize,
    waited_for,
)
from worker_plugin.integrations.horovod.negotiation import Handle
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set
from worker_plugin.tensors.encoding import flat_of
from worker_plugin.tensors.futures import seen_first


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine a tensor with those of all ranks, in place; return a handle immediately.

    After an error the tensor's content is undefined.

    Raises:
        ValueError: the tensor is sparse, or `op` and the older `average` are both given.
    """
    if tensor.is_sparse:
        raise ValueError(
            "a sparse tensor cannot be all-reduced: pass tensor.to_dense(), or sparse_as_dense=True"
        )
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    op = op or (Sum if average is False else Average)
    scales = prescale_factor, postscale_factor
    return _reduce("allreduce", tensor, name, op, scales, process_set, lambda _: tensor)


def _reduce(
    kind: str,
    tensor: Tensor,
    name: str | None,
    op: Operation,
    scales: tuple[float, float],
    process_set: ProcessSet,
    unpack: Callable[[object], Tensor],
) -> Handle:
    """Combine a tensor with those of all ranks, in place."""
    view = tensor.detach()
    work = dense(view)

    def finish(_: object) -> None:
        view.copy_(work)  # if both are the same, this only tells autograd of the change

    same = said_of(tensor, shape=list(tensor.shape), op=op.name.lower()) | {"scales": list(scales)}
    return process_set.negotiation.issue(
        kind, name, lambda _: seen_first(process_set.reduce(work, op, *scales), work, finish), unpack, **same
    )


allreduce_async = on_a_copy(allreduce_async_)
allreduce_ = waited_for(allreduce_async_)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return a tensor combined with those of all ranks; gradients flow back in the same way.

    Raises:
        HorovodInternalError: the ranks disagree about it, or a rank or the reducers are gone.
    """
    smaller, context = compression.compress(tensor)
    settings = op, prescale_factor, postscale_factor, process_set
    result = differentiable(
        smaller,
        allreduce_async(smaller, average, name, *settings),
        lambda gradient: allreduce(gradient, average, None, Compression.none, *settings),
    )
    return compression.decompress(result, context)


grouped_allreduce = grouped(allreduce)
grouped_allreduce_async = grouped(allreduce_async, tuple)
grouped_allreduce_async_ = grouped(allreduce_async_, tuple)
grouped_allreduce_ = waited_for(grouped_allreduce_async_)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Do `reducescatter`; return a handle immediately.

    Raises:
        ValueError: the operation is not Average or Sum, or the tensor has no dimensions.
    """
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter cannot do {op}: only Average and Sum")
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be scattered")
    # If rows are left over, the first ranks get one more row each.
    each, more = divmod(len(tensor), process_set.size())
    begin = process_set.rank() * each + min(process_set.rank(), more)
    end = begin + each + (process_set.rank() < more)
    scales, copy = (prescale_factor, postscale_factor), copy_of(tensor)
    return _reduce("reducescatter", copy, name, op, scales, process_set, lambda _: copy[begin:end].clone())


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of the combined tensor. This is an all-reduce whose other rows are dropped."""
    smaller, context = compression.compress(tensor)
    handle = reducescatter_async(smaller, name, op, process_set, prescale_factor, postscale_factor)
    factor = prescale_factor * postscale_factor * (process_set.size() if op is Sum else 1)  # as in Horovod
    result = differentiable(smaller, handle, lambda gradient: allgather(gradient * factor, None, process_set))
    return compression.decompress(result, context)


grouped_reducescatter = grouped(reducescatter)
grouped_reducescatter_async = grouped(reducescatter_async, tuple)


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Join the tensors of all ranks along the first dimension, which may differ; return a handle immediately.

    Raises:
        ValueError: the tensor has no dimensions.
    """
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be gathered: pass tensor.reshape(1)")

    def run(counts: list[int]) -> Tensor:
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather([_bytes_of(part) for part in parts], _bytes_of(padded), process_set.negotiation.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    issue = process_set.negotiation.issue
    return issue("allgather", name, run, own=len(tensor), **said_of(tensor, rest=list(tensor.shape[1:])))


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the tensors of all ranks joined along the first dimension; gradients flow back."""

    def back(gradient: Tensor) -> Tensor:
        counts = synchronize(allgather_async(torch.tensor([count]), None, process_set))
        begin = int(counts[: process_set.rank()].sum())
        return allreduce(gradient, process_set=process_set)[begin : begin + count]  # the mean, as in Horovod

    handle = allgather_async(tensor, name, process_set)
    count = len(tensor)
    result: Tensor = differentiable(tensor, handle, back)
    return result


grouped_allgather = grouped(allgather)
grouped_allgather_async = grouped(allgather_async, tuple)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Overwrite a tensor with rank root_rank's; return a handle immediately.

    Raises:
        ValueError: that rank is not in the process set.
    """
    issue = process_set.negotiation.issue
    if root_rank not in (process_set.ranks or ()):
        raise ValueError(f"root_rank is {root_rank}, which is not in {process_set}")
    view = tensor.detach()

    def run(_: object) -> None:
        work = dense(view)
        dist.broadcast(_bytes_of(work), root_rank, process_set.negotiation.group)
        view.copy_(work)  # if both are the same, this only tells autograd of the change

    same = said_of(tensor, shape=list(tensor.shape), root_rank=root_rank)
    return issue("broadcast", name, run, lambda _: tensor, **same)


broadcast_async = on_a_copy(broadcast_async_)
broadcast_ = waited_for(broadcast_async_)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return rank root_rank's tensor; gradients flow back to that rank."""

    def back(gradient: Tensor) -> Tensor:
        mean = allreduce(gradient, process_set=process_set)  # as in Horovod
        return mean * (dist.get_rank() == root_rank)

    result: Tensor = differentiable(tensor, broadcast_async(tensor, root_rank, name, process_set), back)
    return result


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send a part of a tensor to each rank; return a handle immediately, for the parts received and their lengths.

    Raises:
        ValueError: the parts do not make up the tensor.
    """
    issue = process_set.negotiation.issue
    count = process_set.size()
    kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
    if kind not in (torch.int32, torch.int64):
        raise ValueError(f"splits are {kind}; they must be integers")
    if splits is None:
        if not tensor.dim() or len(tensor) % count:
            raise ValueError(
                f"a tensor of shape {list(tensor.shape)} has no {count} equal parts: pass splits"
            )
        splits = [len(tensor) // count] * count
    parts = [int(one) for one in splits]
    if len(parts) != count or min(parts) < 0 or sum(parts) > len(tensor):
        raise ValueError(
            f"splits are {parts}; they must be {count} lengths with a sum of at most {len(tensor)}"
        )

    def run(said: list[list[int]]) -> tuple[Tensor, Tensor]:
        received = [lengths[process_set.rank()] for lengths in said]
        output = tensor.new_empty(sum(received), *tensor.shape[1:])
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        dist.all_to_all_single(
            _bytes_of(output),
            _bytes_of(dense(tensor.detach()[: sum(parts)])),
            [row * length for length in received],
            [row * length for length in parts],
            group=process_set.negotiation.group,
        )
        return output, torch.tensor(received, dtype=kind)

    return issue("alltoall", name, run, own=parts, **said_of(tensor, rest=list(tensor.shape[1:])))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of a tensor to each rank; return the parts received and, with splits, their lengths."""

    def back(gradient: Tensor) -> Tensor:
        output: Tensor = synchronize(alltoall_async(gradient, received, None, process_set))[0]
        return output

    output, received = differentiable(tensor, alltoall_async(tensor, splits, name, process_set), back)
    return output if splits is None else (output, received)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as bytes, because Gloo does not support all dtypes."""
    return flat_of(tensor).view(torch.uint8)
