"""The futures that users and DDP wait for. The staging thread completes them: staging.py."""

from __future__ import annotations

import asyncio
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from reduction.errors import ReductionError

Future = torch.futures.Future[torch.Tensor]
_T = TypeVar("_T")

#: Stands in for the loop of an `asyncio.Future` without callbacks, which asks its loop for nothing else.
_NO_LOOP: Any = types.SimpleNamespace(get_debug=lambda: False)


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


def seen_first(future: Future, tensor: torch.Tensor, look: Callable[[torch.Tensor], None]) -> Future:
    """Return a future for `tensor` with the value or error of `future`, once `look` has seen the value."""
    last = make_future(tensor)

    def settle(done: Future) -> None:
        try:
            value = done.value()
            look(value)
        except Exception as error:
            fail(last, error)
        else:
            last.set_result(value)

    future.add_done_callback(settle)
    return last


def outcome_after(ended: torch.futures.Future[Any], future: Future, tensor: torch.Tensor) -> Future:
    """Return a future for `tensor` with the value or error of `future`, once `ended` is done as well.

    `ended` completes later than `future`.
    """
    last = make_future(tensor)

    def settle(_: object) -> None:
        try:
            value = future.value()
        except Exception as error:
            fail(last, error)
        else:
            last.set_result(value)

    ended.add_done_callback(settle)
    return last


def without_frames(error: ReductionError) -> ReductionError:
    """Return a caught error without the stack frames it passed through, so that it can be kept.

    The variables of those frames are collectives and communicators with all of their memory. An explicit cause
    keeps its frames, for people to read.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__ if link.__cause__ is None else None
    return error


def raise_again(error: BaseException | None) -> None:
    """Raise a stored error, if there is one. Its traceback would otherwise grow with each raise."""
    if error is not None:
        raise error.with_traceback(None)


def raise_in_waiter(future: torch.futures.Future[_T]) -> torch.futures.Future[_T]:
    """Return a future for C++ waiters such as DDP.

    `set_exception` only reaches Python waiters. C++ sees a value of the wrong type and loses the message. An
    exception raised in a continuation arrives as a RuntimeError with its text (seen on torch 2.13). But pybind11
    appends to that text all frames of the thread that raised it, which tell users nothing and bury the message.
    So no Python code raises it: the continuation is next(iterator), the iterator calls `asyncio.Future.result`,
    and all of that is written in C.
    """
    outcome: asyncio.Future[_T] = asyncio.Future(loop=_NO_LOOP)

    def settle(done: torch.futures.Future[_T]) -> _T | None:
        try:
            value = done.value()
        except Exception as error:
            outcome.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            return None
        outcome.set_result(value)
        return value

    # Two chained continuations, because the callbacks of one future have no order: a callback added while another
    # thread completes the future is called immediately, concurrently with those that were added before it.
    settled = future.then(settle)
    return settled.then(functools.partial(next, map(operator.call, (outcome.result,))))
