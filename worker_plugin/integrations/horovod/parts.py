"""Sums of which each rank gets its rows, or of which only some rows are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker_plugin.integrations.horovod.all_reduce import reduce_in_place, reduction_of
from worker_plugin.integrations.horovod.exchange import allgather, submit_all_gather
from worker_plugin.integrations.horovod.handles import (
    Average,
    Compression,
    Handle,
    NoCompression,
    Operation,
    Sum,
    Tensor,
    group_names,
    operation_of,
    refuse_joined,
    single,
    synchronize,
)
from worker_plugin.integrations.horovod.negotiation import Entry
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Operation | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Add up the sparse tensors of all ranks; return at once, with a function that waits for the result.

    Indices and values of all ranks are gathered, as in Horovod: no byte of it goes through reducers.
    """
    tensor = tensor.coalesce() if tensor.is_sparse else tensor.to_sparse()
    names = (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    indices = submit_all_gather(tensor.indices().t().contiguous(), names[0], process_set)
    values = submit_all_gather(tensor.values(), names[1], process_set)

    def wait() -> Tensor:
        total = torch.sparse_coo_tensor(indices.wait().t(), values.wait(), tensor.shape)
        return total / process_set.size() if operation_of(None, op) is Average else total

    return wait


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Do `reducescatter`; return a handle at once."""
    scales = prescale_factor, postscale_factor
    return single(_submit_reduce_scatter(tensor, name, op, scales, process_set))


def _submit_reduce_scatter(
    tensor: Tensor, name: str | None, op: Operation, scales: tuple[float, float], process_set: ProcessSet
) -> Entry:
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter cannot do {op}: only Average and Sum")
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be scattered")
    negotiation = process_set.negotiation
    count, number = process_set.size(), process_set.rank()
    same = reduction_of("reducescatter", tensor, op, scales)
    # The first ranks have one row more each where rows are left over.
    each, more = divmod(len(tensor), count)
    begin, rows = number * each + min(number, more), each + (number < more)

    def run(said: list[Any]) -> Any:
        refuse_joined(said)
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        result = reduce_in_place(process_set, work, op, *scales)
        if isinstance(result, torch._C.Future):
            return result.then(lambda done: done.value()[begin : begin + rows].clone())
        return result[begin : begin + rows].clone()

    return negotiation.submit(Entry(negotiation.name("reducescatter", name), same, run))


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *settings: Any) -> Tensor:
        ctx.settings = settings
        _, op, process_set, *scales = settings
        result: Tensor = synchronize(reducescatter_async(tensor, settings[0], op, process_set, *scales))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, op, process_set, prescale, postscale = ctx.settings
        factor = prescale * postscale * (process_set.size() if op is Sum else 1)  # as in Horovod
        return allgather(gradient * factor, None, process_set), *(None for _ in ctx.settings)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[NoCompression] = Compression.none,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of the combined tensor. It is an all-reduce of which the other rows are dropped."""
    smaller, context = compression.compress(tensor)
    settings = name, op, process_set, prescale_factor, postscale_factor
    return compression.decompress(_ReduceScatter.apply(smaller, *settings), context)  # type: ignore[no-untyped-call]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Do `reducescatter` for each tensor; return a handle at once."""
    settings = op, (prescale_factor, postscale_factor), process_set
    names = group_names(tensors, name)
    entries = [_submit_reduce_scatter(one, its, *settings) for one, its in zip(tensors, names, strict=True)]
    return Handle(entries, list)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[NoCompression] = Compression.none,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Do `reducescatter` for each tensor."""
    settings = compression, op, process_set, prescale_factor, postscale_factor
    names = group_names(tensors, name)
    return [reducescatter(one, its, *settings) for one, its in zip(tensors, names, strict=True)]
