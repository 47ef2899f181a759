"""Horovod's collectives: eager, by name, each with a variant that returns a handle at once."""

from __future__ import annotations

import enum
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.negotiation import Entry, HorovodInternalError
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set
from worker_plugin.tensors.admission import is_admitted

Tensor = torch.Tensor


class Operation(enum.Enum):
    """How tensors are combined."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average, Sum, Min, Max, Product = Operation
_OPS: dict[Operation, dist.ReduceOp.RedOpType] = {
    Average: dist.ReduceOp.AVG,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class _NoCompression:
    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor, and what `decompress` needs."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor as it was before `compress`."""
        return tensor if tensor.dtype == dtype else tensor.to(dtype)


class _HalfCompression(_NoCompression):
    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor in float16, if it is one of floating-point numbers."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype


class Compression:
    """Horovod's ways to send fewer bytes. REDUCTION_WIRE_DTYPE has better ones, which add in float32."""

    none = _NoCompression
    fp16 = _HalfCompression


class Handle:
    """One collective, or a group of them, that was issued.

    Args:
        entries: of the negotiation.
        unpack: makes the result out of theirs.
    """

    def __init__(self, entries: Sequence[Entry], unpack: Callable[[list[Any]], Any]) -> None:
        self._entries = entries
        self._unpack = unpack

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return all(entry.done.is_set() for entry in self._entries)

    def wait(self) -> Any:
        """Return the result.

        Raises:
            HorovodInternalError: it failed.
        """
        return self._unpack([entry.wait() for entry in self._entries])


def poll(handle: Handle) -> bool:
    """Whether a collective is done, so that `synchronize` returns at once."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for a collective, and return its result.

    Raises:
        HorovodInternalError: it failed, on all ranks.
    """
    return handle.wait()


def _one(entry: Entry) -> Handle:
    return Handle([entry], lambda results: results[0])


# ---- all-reduce ----


def _operation(average: bool | None, op: Operation | None) -> Operation:
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return Average if average else Sum
    return Average if op is None else op


def _all_reduce(
    process_set: ProcessSet, tensor: Tensor, op: Operation, prescale: float, postscale: float
) -> torch.futures.Future[Tensor] | Tensor:
    """Reduce a contiguous tensor in place, on the thread of the negotiation."""
    scaled_by = postscale
    # Integers are scaled in float64, and cut.
    if prescale != 1.0:
        tensor.copy_(tensor * prescale if tensor.is_floating_point() else tensor.double() * prescale)
    torch_op = _OPS[op]
    is_integer_average = op is Average and not tensor.is_floating_point()
    if is_integer_average:
        torch_op = dist.ReduceOp.SUM

    def finish() -> Tensor:
        if is_integer_average:
            tensor.copy_(torch.div(tensor, process_set.size(), rounding_mode="trunc"))
        if scaled_by != 1.0:
            tensor.copy_(tensor * scaled_by if tensor.is_floating_point() else tensor.double() * scaled_by)
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


def stand_in(process_set: ProcessSet, name: str, same: dict[str, Any]) -> Callable[[], Any]:
    """Return what a joined rank does in a collective of the others: all-reduce zeros, or nothing."""
    if same.get("kind") != "allreduce":
        optimizer = _optimizers.get(name.partition("@")[0])
        return (lambda: None) if optimizer is None else optimizer._stand_in
    zeros = torch.zeros(same["shape"], dtype=getattr(torch, same["dtype"]), device=same["device"])
    return lambda: _all_reduce(process_set, zeros, Operation(same["op"]), 1.0, 1.0)


#: The optimizers of optimizer.py by their names: a joined rank takes part in their steps.
_optimizers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


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
    same = {
        "kind": "allreduce",
        "dtype": _dtype(tensor),
        "shape": list(tensor.shape),
        "op": op.value,
        "device": tensor.device.type,
        "scales": list(scales),
    }

    def run(said: list[Any]) -> Any:
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        result = _all_reduce(process_set, work, op, *scales)
        if output is None:
            return result
        if isinstance(result, torch._C.Future):
            return result.then(lambda done: output.detach().copy_(done.value()) is output or output)
        output.detach().copy_(result)
        return output

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
    return _one(_submit_all_reduce(tensor, None, name, _operation(average, op), scales, process_set))


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
    return _one(_submit_all_reduce(tensor, tensor, name, _operation(average, op), scales, process_set))


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
    compression: type[_NoCompression] = Compression.none,
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
    settings = name, _operation(average, op), prescale_factor, postscale_factor, process_set
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
    settings = _operation(average, op), (prescale_factor, postscale_factor), process_set
    names = _group_names(tensors, name)
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
    settings = _operation(average, op), (prescale_factor, postscale_factor), process_set
    names = _group_names(tensors, name)
    return Handle(
        [_submit_all_reduce(one, one, its, *settings) for one, its in zip(tensors, names, strict=True)], list
    )


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[_NoCompression] = Compression.none,
    op: Operation | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return each tensor combined with those of all ranks."""
    settings = compression, op, prescale_factor, postscale_factor, process_set
    names = _group_names(tensors, name)
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


def _group_names(tensors: Sequence[Tensor], name: str | None) -> list[str | None]:
    if len({tensor.device.type for tensor in tensors}) > 1:
        raise ValueError("tensors of one group must be on one kind of device")
    return [
        None if name is None else f"{name}_{number}of{len(tensors)}" for number in range(1, len(tensors) + 1)
    ]


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
    indices = _submit_all_gather(tensor.indices().t().contiguous(), names[0], process_set)
    values = _submit_all_gather(tensor.values(), names[1], process_set)

    def wait() -> Tensor:
        total = torch.sparse_coo_tensor(indices.wait().t(), values.wait(), tensor.shape)
        return total / process_set.size() if _operation(None, op) is Average else total

    return wait


# ---- all others ----


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Join the tensors of all ranks along the first dimension, which may differ; return a handle at once."""
    return _one(_submit_all_gather(tensor, name, process_set))


def _submit_all_gather(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Entry:
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be gathered: pass tensor.reshape(1)")
    negotiation = process_set.negotiation
    same = {
        "kind": "allgather",
        "dtype": _dtype(tensor),
        "rest": list(tensor.shape[1:]),
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> Tensor:
        _refuse_joined(said)
        padded = tensor.new_zeros(max(said), *tensor.shape[1:])
        padded[: len(tensor)] = tensor.detach()
        parts = [torch.empty_like(padded) for _ in said]
        dist.all_gather([_bytes(part) for part in parts], _bytes(padded), group=process_set.group)
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
    names = _group_names(tensors, name)
    return Handle(
        [_submit_all_gather(one, its, process_set) for one, its in zip(tensors, names, strict=True)], list
    )


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Do `allgather` for each tensor."""
    names = _group_names(tensors, name)
    return [allgather(one, its, process_set) for one, its in zip(tensors, names, strict=True)]


def _submit_broadcast(
    tensor: Tensor, output: Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> Entry:
    negotiation = process_set.negotiation
    if root_rank not in process_set._known():
        raise ValueError(f"root_rank is {root_rank}, which is not in {process_set}")
    same = {
        "kind": "broadcast",
        "dtype": _dtype(tensor),
        "shape": list(tensor.shape),
        "root_rank": root_rank,
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> Tensor:
        _refuse_joined(said)
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(_bytes(work), root_rank, process_set.group)
        if output is None:
            return work
        output.detach().copy_(work)
        return output

    return negotiation.submit(Entry(negotiation.name("broadcast", name), same, run))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Hand out rank root_rank's tensor as a new one; return a handle at once."""
    return _one(_submit_broadcast(tensor, None, root_rank, name, process_set))


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Hand out rank root_rank's tensor, in place; return a handle at once."""
    return _one(_submit_broadcast(tensor, tensor, root_rank, name, process_set))


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
        "dtype": _dtype(tensor),
        "rest": list(tensor.shape[1:]),
        "device": tensor.device.type,
    }

    def run(said: list[Any]) -> tuple[Tensor, Tensor]:
        _refuse_joined(said)
        received = [lengths[process_set.rank()] for lengths in said]
        output = tensor.new_empty(sum(received), *tensor.shape[1:])
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        dist.all_to_all_single(
            _bytes(output),
            _bytes(tensor.detach()[: sum(parts)].contiguous()),
            [row * length for length in received],
            [row * length for length in parts],
            group=process_set.group,
        )
        kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
        return output, torch.tensor(received, dtype=kind)

    return _one(negotiation.submit(Entry(negotiation.name("alltoall", name), same, run, own=parts)))


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
    return _one(_submit_reduce_scatter(tensor, name, op, scales, process_set))


def _submit_reduce_scatter(
    tensor: Tensor, name: str | None, op: Operation, scales: tuple[float, float], process_set: ProcessSet
) -> Entry:
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter cannot do {op}: only Average and Sum")
    if not tensor.dim():
        raise ValueError("a tensor without dimensions cannot be scattered")
    negotiation = process_set.negotiation
    count, number = process_set.size(), process_set.rank()
    same = {
        "kind": "reducescatter",
        "dtype": _dtype(tensor),
        "shape": list(tensor.shape),
        "op": op.value,
        "device": tensor.device.type,
        "scales": list(scales),
    }
    # The first ranks have one row more each where rows are left over.
    each, more = divmod(len(tensor), count)
    begin, rows = number * each + min(number, more), each + (number < more)

    def run(said: list[Any]) -> Any:
        _refuse_joined(said)
        work = tensor.detach().clone(memory_format=torch.contiguous_format)
        result = _all_reduce(process_set, work, op, *scales)
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
    compression: type[_NoCompression] = Compression.none,
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
    names = _group_names(tensors, name)
    entries = [_submit_reduce_scatter(one, its, *settings) for one, its in zip(tensors, names, strict=True)]
    return Handle(entries, list)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[_NoCompression] = Compression.none,
    op: Operation = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Do `reducescatter` for each tensor."""
    settings = compression, op, process_set, prescale_factor, postscale_factor
    names = _group_names(tensors, name)
    return [reducescatter(one, its, *settings) for one, its in zip(tensors, names, strict=True)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    negotiation = process_set.negotiation
    negotiation.submit(Entry(negotiation.name("barrier", None), {"kind": "barrier"}, lambda _: None)).wait()


def join(device: int = -1) -> int:
    """Call it when this rank's data is used up: it gives zeros to what the others all-reduce, until all have joined.

    Returns:
        The rank that was the last to join.
    """
    return global_process_set.negotiation.join()


def _refuse_joined(said: Sequence[Any]) -> None:
    joined = [rank for rank, one in enumerate(said) if one is None]
    if joined:
        raise HorovodInternalError(
            f"ranks {joined} have joined, and can only take part in allreduce and barrier"
        )


def _bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as bytes, because Gloo does not know all dtypes."""
    return tensor.view(-1).view(torch.uint8)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
