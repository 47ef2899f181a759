"""What all collectives have in common: how tensors are combined, what is returned, how groups are named."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.negotiation import Entry, HorovodInternalError
from worker_plugin.tensors.encoding import flat_of

Tensor = torch.Tensor


class Operation(enum.Enum):
    """How tensors are combined."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average, Sum, Min, Max, Product = Operation
TORCH_OPS: dict[Operation, dist.ReduceOp.RedOpType] = {
    Average: dist.ReduceOp.AVG,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class NoCompression:
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor, and what `decompress` needs."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor as it was before `compress`."""
        return tensor if tensor.dtype == dtype else tensor.to(dtype)


class HalfCompression(NoCompression):
    """Floating-point numbers travel in float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor in float16, if it is one of floating-point numbers."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype


class Compression:
    """Horovod's ways to send fewer bytes. REDUCTION_WIRE_DTYPE has better ones, which add in float32."""

    none = NoCompression
    fp16 = HalfCompression


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


def single(entry: Entry) -> Handle:
    """Return the handle of one collective."""
    return Handle([entry], lambda results: results[0])


def operation_of(average: bool | None, op: Operation | None) -> Operation:
    """Return what `op`, or the older `average`, means; Average if neither is given.

    Raises:
        ValueError: both are given.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return Average if average else Sum
    return Average if op is None else op


def group_names(tensors: Sequence[Tensor], name: str | None) -> list[str | None]:
    """Return the names of a group's collectives, by the group's.

    Raises:
        ValueError: some tensors are on GPUs and some are not.
    """
    if len({tensor.device.type for tensor in tensors}) > 1:
        raise ValueError("tensors of one group must be on one kind of device")
    return [
        None if name is None else f"{name}_{number}of{len(tensors)}" for number in range(1, len(tensors) + 1)
    ]


def refuse_joined(said: Sequence[Any]) -> None:
    """Raise HorovodInternalError if a rank has joined, which cannot take part."""
    joined = [rank for rank, one in enumerate(said) if one is None]
    if joined:
        raise HorovodInternalError(
            f"ranks {joined} have joined, and can only take part in allreduce and barrier"
        )


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as bytes, because Gloo does not know all dtypes."""
    return flat_of(tensor).view(torch.uint8)


def dtype_of(tensor: Tensor) -> str:
    """Return a tensor's dtype as ranks tell it to each other."""
    return str(tensor.dtype).removeprefix("torch.")
