"""torch dtypes and futures on one side, the protocol's values on the other."""

from __future__ import annotations

import asyncio
import functools
import operator
import types
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ReductionError
from reduction.model import DType, ReduceOp

Future = torch.futures.Future[torch.Tensor]

#: All that an `asyncio.Future` without callbacks wants of its loop.
_NO_LOOP: Any = types.SimpleNamespace(get_debug=lambda: False)

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bfloat16: DType.BFLOAT16,
    torch.float16: DType.FLOAT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.bool: DType.BOOL,
}
_OPS = (
    (dist.ReduceOp.SUM, ReduceOp.SUM),
    (dist.ReduceOp.AVG, ReduceOp.AVG),
    (dist.ReduceOp.MIN, ReduceOp.MIN),
    (dist.ReduceOp.MAX, ReduceOp.MAX),
    (dist.ReduceOp.PRODUCT, ReduceOp.PRODUCT),
)


def check(tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp) -> tuple[DType, ReduceOp]:
    """Return what to call this collective on the wire.

    Raises:
        ConfigError: it cannot be reduced; the message says what can.
    """
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a {tensor.layout} tensor cannot be reduced; pass a dense one")
    if not tensor.is_contiguous():
        raise ConfigError(
            f"a tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()} is not contiguous; "
            f"pass tensor.contiguous()"
        )
    if tensor.is_neg():
        raise ConfigError("a tensor with the negative bit cannot be reduced; pass tensor.resolve_neg()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"a tensor on {tensor.device} cannot be reduced; cpu and cuda can")
    if tensor.is_cuda:
        _check_capture(tensor.device)
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ConfigError(f"dtype {tensor.dtype} cannot be reduced; known are {', '.join(map(str, _DTYPES))}")
    # `op in (...)` is always False for torch's ReduceOp, and it cannot be hashed.
    ours = next((ours for theirs, ours in _OPS if op == theirs), None)
    if ours is None:
        raise ConfigError(f"op {op} is not supported; known are {', '.join(one.name for _, one in _OPS)}")
    if not dtype.allows(ours):
        raise ConfigError(f"{ours.name} of {tensor.dtype} is not defined: use SUM and divide")
    return dtype, ours


def _check_capture(device: torch.device) -> None:
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "a collective cannot be part of a CUDA graph, because the CPU has to take part at each replay; "
                "capture the forward pass alone, or what comes before and after the all-reduce"
            )


def check_dense(gradient: torch.Tensor) -> None:
    """Refuse a sparse bucket, which DDP makes for each parameter that has sparse gradients.

    Raises:
        ConfigError: it is one; the message says what to do.
    """
    if gradient.layout is not torch.strided:
        raise ConfigError(
            f"the gradient of a parameter of shape {tuple(gradient.shape)} is a {gradient.layout} tensor, reducers "
            f"average dense ones: make the nn.Embedding or nn.EmbeddingBag with sparse=False; if few elements of its "
            f"gradient count, wire_dtype='topk' sends only those"
        )


def make_future(tensor: torch.Tensor) -> Future:
    """Return a future that synchronises streams if the tensor lives on a GPU."""
    return torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])


def failed(error: Exception) -> Future:
    """Return a future that is done with an error."""
    future: Future = torch.futures.Future()
    fail(future, error)
    return future


def fail(future: Future, error: Exception) -> None:
    """Complete a future with an error; Python waiters get this very exception."""
    future.set_exception(error)  # type: ignore[arg-type]  # torch annotates it with the value's type


def without_frames(error: ReductionError) -> ReductionError:
    """Return an error that was caught, for somebody to keep: without the frames that it came through.

    Their variables are collectives and communicators, with all of their memory. What was named as its cause is left as
    it is, for people to read.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__context__ if one.__cause__ is None else None
    return error


def raise_in_waiter(future: Future) -> Future:
    """Return a future for C++ waiters such as DDP.

    `set_exception` only reaches Python waiters; C++ sees a value of the wrong type and loses the message. An exception
    raised in a continuation arrives as RuntimeError with its text (seen on torch 2.13). But to that text pybind11 adds
    all frames of the thread that raised it, which say nothing to a user and hide it. So nothing of Python raises it:
    the continuation is next(iterator), the iterator calls `asyncio.Future.result`, and all of that is written in C.
    """
    outcome: asyncio.Future[torch.Tensor] = asyncio.Future(loop=_NO_LOOP)

    def settle(done: Future) -> torch.Tensor | None:
        try:
            value = done.value()
        except Exception as error:
            outcome.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            return None
        outcome.set_result(value)
        return value

    # A chain of two, since callbacks of one future have no order: one that is added while it is being completed by
    # another thread is called at once, beside those that were added before.
    settled = future.then(settle)
    return settled.then(functools.partial(next, map(operator.call, (outcome.result,))))
