"""Common parts of collectives: compression, handles, groups, gradients."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin.integrations.horovod.negotiation import Handle

Tensor = torch.Tensor


class Operation(enum.Enum):
    """How tensors are combined."""

    AVERAGE = dist.ReduceOp.AVG
    SUM = dist.ReduceOp.SUM
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX
    PRODUCT = dist.ReduceOp.PRODUCT


Average, Sum, Min, Max, Product = Operation


class Compressor:
    """Sends floating-point numbers as another type.

    Args:
        dtype: that type; None: unchanged.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype = dtype

    def compress(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor to send, and what `decompress` needs."""
        return (
            tensor.to(self._dtype or tensor.dtype) if tensor.is_floating_point() else tensor
        ), tensor.dtype

    def decompress(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor with the dtype that it had before `compress`."""
        return tensor.to(dtype)


class Compression:
    """Horovod's ways to send fewer bytes. REDUCTION_WIRE_DTYPE has better ones, which add in float32."""

    none = Compressor()
    fp16 = Compressor(torch.float16)


def poll(handle: Handle | tuple[Handle, ...]) -> bool:
    """Return whether a collective, or a group of them, is done, so that `synchronize` returns immediately."""
    return all(map(poll, handle)) if isinstance(handle, tuple) else handle.done.is_set()


def synchronize(handle: Handle | tuple[Handle, ...]) -> Any:
    """Wait for a collective, or a group of them, and return its result.

    Raises:
        HorovodInternalError: it failed, on all ranks.
    """
    return [one.wait() for one in handle] if isinstance(handle, tuple) else handle.wait()


def grouped(each: Callable[..., Any], result: Callable[[list[Any]], Any] = list) -> Callable[..., Any]:
    """Return a function that does for several tensors, on one kind of device, what `each` does for one.

    It has the parameters of `each`, with `tensors` in place of `tensor`.
    """
    first, *others = inspect.signature(each).parameters.values()
    signature = inspect.Signature([first.replace(name="tensors", annotation="Sequence[Tensor]"), *others])

    def for_all(*given: Any, **named: Any) -> Any:
        arguments = signature.bind(*given, **named).arguments
        tensors, name = arguments.pop("tensors"), arguments.get("name")
        if len({tensor.device.type for tensor in tensors}) > 1:
            raise ValueError("tensors of one group must be on one kind of device")
        results = []
        for number, tensor in enumerate(tensors, 1):
            if name is not None:
                arguments["name"] = f"{name}_{number}of{len(tensors)}"
            results.append(each(tensor, **arguments))
        return result(results)

    for_all.__signature__ = signature  # type: ignore[attr-defined]
    return _named(for_all, f"grouped_{each.__name__}", f"Do `{each.__name__}` for each tensor.")


def on_a_copy(in_place: Callable[..., Handle]) -> Callable[..., Handle]:
    """Return the collective whose result is a new tensor, given the one that overwrites its tensor."""

    @functools.wraps(in_place)
    def issue(tensor: Tensor, *arguments: Any, **named: Any) -> Handle:
        return in_place(copy_of(tensor), *arguments, **named)

    name = in_place.__name__
    return _named(issue, name.rstrip("_"), f"Do `{name}` with a copy of the tensor.")


def waited_for(issue: Callable[..., Any]) -> Callable[..., Any]:
    """Return the collective that returns its result, given the one that returns a handle."""

    @functools.wraps(issue)
    def call(*arguments: Any, **named: Any) -> Any:
        return synchronize(issue(*arguments, **named))

    name = issue.__name__
    return _named(call, name.replace("_async", ""), f"Do `{name}`, and return its result.")


def _named(function: Callable[..., Any], name: str, text: str) -> Callable[..., Any]:
    function.__name__, function.__doc__ = name, text
    return function


def differentiable(tensor: Tensor, handle: Handle, back: Callable[[Tensor], Tensor]) -> Any:
    """Return the result of a collective of a tensor; `back` computes the tensor's gradient from the result's."""
    return _Differentiable.apply(tensor, handle, back)  # type: ignore[no-untyped-call]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, handle: Handle, back: Callable[[Tensor], Tensor]) -> Any:
        ctx.back = back
        return handle.wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        return ctx.back(gradient), None, None


def said_of(tensor: Tensor, **more: Any) -> dict[str, Any]:
    """Return the properties of a tensor that must be the same on all ranks."""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), **more, "device": tensor.device.type}


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that any thread may write to."""
    with torch.inference_mode(False):
        return tensor.detach().clone()


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory has the elements in order, which is this one if it already has."""
    return tensor.resolve_conj().resolve_neg().contiguous()
