"""All-reduces, which go through the reducers; and what a rank does that has joined."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.handles import (
    TORCH_OPS,
    Average,
    Compression,
    Handle,
    NoCompression,
    Operation,
    Tensor,
    dtype_of,
    group_names,
    operation_of,
    single,
    synchronize,
)
from worker_plugin.integrations.horovod.negotiation import Entry
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set
from worker_plugin.tensors.admission import is_admitted


def reduce_in_place(
    process_set: ProcessSet, tensor: Tensor, op: Operation, prescale: float, postscale: float
) -> torch.futures.Future[Tensor] | Tensor:
    """Reduce a contiguous tensor in place, on the thread of the negotiation."""
    _scale(tensor, prescale)
    torch_op = TORCH_OPS[op]
    is_integer_average = op is Average and not tensor.is_floating_point()
    if is_integer_average:
        torch_op = dist.ReduceOp.SUM

    def finish() -> Tensor:
        if is_integer_average:
            tensor.copy_(torch.div(tensor, process_set.size(), rounding_mode="trunc"))
        _scale(tensor, postscale)
        return tensor

    if is_admitted(tensor, torch_op):
        future = process_set.state.all_reduce(tensor, torch_op)

        def complete(done: torch.futures.Future[Tensor]) -> Tensor:
            done.value()
            return finish()

        return future.then(complete)
    if torch_op is dist.ReduceOp.AVG:
        dist.all_reduce(tensor, dist.ReduceOp.SUM, process_set.group)
        tensor /= process_set.size()
    else:
        dist.all_reduce(tensor, torch_op, process_set.group)
    return finish()


def _scale(tensor: Tensor, factor: float) -> None:
    """Multiply a tensor in place; integers in float64, and what is behind the point is cut."""
    if factor != 1.0:
        tensor.copy_(tensor * factor if tensor.is_floating_point() else tensor.double() * factor)


def reduction_of(kind: str, tensor: Tensor, op: Operation, scales: tuple[float, float]) -> dict[str, Any]:
    """Return what all ranks must say alike of a reduction."""
    return {
        "kind": kind,
        "dtype": dtype_of(tensor),
        "shape": list(tensor.shape),
        "op": op.value,
        "device": tensor.device.type,
        "scales": list(scales),
    }


def stand_in(process_set: ProcessSet, name: str, same: dict[str, Any]) -> Callable[[], Any]:
    """Return what a joined rank does in a collective of the others: all-reduce zeros, or nothing."""
    if same.get("kind") != "allreduce":
        optimizer = optimizers.get(name.partition("@")[0])
        return (lambda: None) if optimizer is None else optimizer._stand_in
    zeros = torch.zeros(same["shape"], dtype=getattr(torch, same["dtype"]), device=same["device"])
    return lambda: reduce_in_place(process_set, zeros, Operation(same["op"]), 1.0, 1.0)


#: The optimizers of optimizer.py by their names: a joined rank takes part in their steps.
optimizers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _submit_all_reduce(
    tensor: Tensor,
    output: Tensor | None,
    name: str | None,
    op: Operation,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> Entry:
    if tensor.is_sparse:
        raise ValueError(
            "a sparse tensor cannot be all-reduced: pass tensor.to_dense(), or sparse_as_dense=True"
        )
    negotiation = process_set.negotiation

    def into(given: Tensor, value: Tensor) -> Tensor:
        given.detach().copy_(value)
        return given

    same = reduction_of("allreduce", tensor, op, scales)

    def run(said: list[Any]) -> Any:
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        result = reduce_in_place(process_set, work, op, *scales)
        if output is None:
            return result
        if isinstance(result, torch._C.Future):
            return result.then(lambda done: into(output, done.value()))
        return into(output, result)

    return negotiation.submit(Entry(negotiation.name("allreduce", name), same, run))


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine a tensor with those of all ranks into a new one; return a handle at once."""
    scales = prescale_factor, postscale_factor
    return single(_submit_all_reduce(tensor, None, name, operation_of(average, op), scales, process_set))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine a tensor with those of all ranks, in place; return a handle at once."""
    scales = prescale_factor, postscale_factor
    return single(_submit_all_reduce(tensor, tensor, name, operation_of(average, op), scales, process_set))


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *settings: Any) -> Tensor:
        ctx.settings = settings
        result: Tensor = synchronize(allreduce_async(tensor, None, *settings))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, *settings = ctx.settings
        return allreduce(gradient, None, None, Compression.none, *settings), *(None for _ in ctx.settings)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[NoCompression] = Compression.none,
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
    settings = name, operation_of(average, op), prescale_factor, postscale_factor, process_set
    return compression.decompress(_AllReduce.apply(smaller, *settings), context)  # type: ignore[no-untyped-call]


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine a tensor with those of all ranks, in place, and return it."""
    scales = prescale_factor, postscale_factor
    result: Tensor = synchronize(allreduce_async_(tensor, average, name, op, *scales, process_set))
    return result


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine each tensor with those of all ranks into a new one; return a handle at once."""
    settings = operation_of(average, op), (prescale_factor, postscale_factor), process_set
    names = group_names(tensors, name)
    return Handle(
        [_submit_all_reduce(one, None, its, *settings) for one, its in zip(tensors, names, strict=True)], list
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Combine each tensor with those of all ranks, in place; return a handle at once."""
    settings = operation_of(average, op), (prescale_factor, postscale_factor), process_set
    names = group_names(tensors, name)
    return Handle(
        [_submit_all_reduce(one, one, its, *settings) for one, its in zip(tensors, names, strict=True)], list
    )


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[NoCompression] = Compression.none,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return each tensor combined with those of all ranks."""
    settings = compression, op, prescale_factor, postscale_factor, process_set
    names = group_names(tensors, name)
    return [allreduce(one, average, its, *settings) for one, its in zip(tensors, names, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine each tensor with those of all ranks, in place, and return them."""
    settings = average, name, op, prescale_factor, postscale_factor, process_set
    results: list[Tensor] = synchronize(grouped_allreduce_async_(tensors, *settings))
    return results


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    process_set.negotiation.barrier()


def join(device: int = -1) -> int:
    """Call it when this rank's data is used up: it gives zeros to what the others all-reduce, until all have joined.

    Returns:
        The rank that was the last to join.
    """
    return global_process_set.negotiation.join()
