"""Ordering of a group's collectives. The inner group's are in flight until a test completes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reduction.errors import ResourceExhausted, WorkerLost
from torch.distributed import Work

from worker_plugin.process_group.completions import completions
from worker_plugin.process_group.order import Order
from worker_plugin.tensors.futures import Future, fail

WAIT_S = 30.0
LOST = WorkerLost("rank 1 is gone")


class Delegated(Work):
    """A collective of the inner group."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Future = torch.futures.Future()

    def wait(self, timeout: Any = None) -> bool:
        self.done.wait()
        return True

    def is_completed(self) -> bool:
        return self.done.done()


class Inner:
    """The inner group; records the collectives it has begun."""

    def __init__(self) -> None:
        self.begun: list[Delegated] = []
        self.news = threading.Semaphore(0)

    def collective(self, *_: Any, **__: Any) -> Delegated:
        self.begun.append(Delegated())
        self.news.release()
        return self.begun[-1]


class InAThread:
    """A call that may block."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self.over = threading.Event()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.outcome = call()
        except Exception as error:
            self.outcome = error
        self.over.set()

    def result(self) -> Any:
        assert self.over.wait(WAIT_S)
        return self.outcome

    @property
    def waits(self) -> bool:
        return not self.over.wait(0.1)


@pytest.fixture
def order() -> Order:
    return Order()


@pytest.fixture
def inner() -> Inner:
    return Inner()


def all_reduce(order: Order, tensor: torch.Tensor) -> tuple[Any, Future]:
    future: Future = torch.futures.Future()
    return order.all_reduce([tensor], lambda: [future]), future


def test_a_barrier_begins_after_the_all_reduces_in_flight_and_its_call_does_not_wait(
    order: Order, inner: Inner
) -> None:
    one, two = torch.ones(3), torch.ones(3)
    (_, first), (_, second) = all_reduce(order, one), all_reduce(order, two)
    barrier = order.barrier(inner.collective)
    first.set_result(one)
    assert not inner.news.acquire(timeout=0.1)
    second.set_result(two)
    assert inner.news.acquire(timeout=WAIT_S)
    assert not barrier.is_completed()
    inner.begun[0].done.set_result(one)
    assert barrier.wait() is True


def test_a_barrier_is_the_inner_groups_own_if_nothing_is_in_flight(order: Order, inner: Inner) -> None:
    tensor = torch.ones(3)
    _, future = all_reduce(order, tensor)
    future.set_result(tensor)
    assert order.barrier(inner.collective) is inner.begun[0]
    with pytest.raises(WorkerLost):
        order.all_reduce([tensor], lambda: (_ for _ in ()).throw(LOST))
    assert order.barrier(inner.collective) is inner.begun[1]
    done: Future = torch.futures.Future()
    done.set_result(tensor)
    order.all_reduce([tensor], lambda: [done])
    assert order.barrier(inner.collective) is inner.begun[2]


def test_collectives_that_follow_a_barrier_begin_after_it(order: Order, inner: Inner) -> None:
    tensor = torch.ones(3)
    _, future = all_reduce(order, tensor)
    barrier = order.barrier(inner.collective)
    later = InAThread(lambda: order.delegate(inner.collective, [torch.ones(2)]))
    assert later.waits
    assert not inner.begun
    future.set_result(tensor)
    assert later.result() is inner.begun[1]
    assert not barrier.is_completed()
    inner.begun[0].done.set_result(tensor)
    barrier.wait()


def test_barriers_begin_in_the_order_of_their_calls(order: Order, inner: Inner) -> None:
    tensors = [torch.ones(3), torch.ones(3)]
    (_, first) = all_reduce(order, tensors[0])
    barriers = [order.barrier(inner.collective)]
    (_, second) = all_reduce(order, tensors[1])
    barriers.append(order.barrier(inner.collective))
    second.set_result(tensors[1])
    assert not inner.news.acquire(timeout=0.1)
    first.set_result(tensors[0])
    for _ in barriers:
        assert inner.news.acquire(timeout=WAIT_S)
    inner.begun[1].done.set_result(tensors[0])
    assert barriers[1].wait()
    assert not barriers[0].is_completed()
    inner.begun[0].done.set_result(tensors[0])
    assert barriers[0].wait()


def test_a_barrier_after_a_failed_all_reduce_fails_and_so_does_what_follows(
    order: Order, inner: Inner
) -> None:
    _, future = all_reduce(order, torch.ones(3))
    barrier = order.barrier(inner.collective)
    fail(future, LOST)
    with pytest.raises(WorkerLost, match="rank 1 is gone"):
        barrier.wait()
    for again in (
        lambda: order.delegate(inner.collective, torch.ones(1)),
        lambda: order.barrier(inner.collective),
    ):
        with pytest.raises(WorkerLost, match="rank 1 is gone"):
            again()
    assert not inner.begun


def test_a_barrier_that_fails_in_the_inner_group_raises(order: Order, inner: Inner) -> None:
    tensor = torch.ones(3)
    _, future = all_reduce(order, tensor)
    barrier = order.barrier(inner.collective)
    future.set_result(tensor)
    assert inner.news.acquire(timeout=WAIT_S)
    fail(inner.begun[0].done, RuntimeError("connection reset"))
    with pytest.raises(RuntimeError, match="connection reset"):
        barrier.wait()
    assert order.delegate(inner.collective, tensor) is inner.begun[1]


MEMORY = torch.zeros(10, 10)
OVERLAPPING = [
    (MEMORY, MEMORY),
    (MEMORY[:5], MEMORY[4:]),
    (MEMORY.flatten()[:51], MEMORY[5, :1]),
    (MEMORY[:, 3], MEMORY[9, 3:4]),
]
DISJOINT = [
    (MEMORY[:5], MEMORY[5:]),
    (MEMORY[:, 3], MEMORY[9, 4:]),
    (MEMORY[:0], MEMORY),
    (MEMORY, torch.ones(3)),
    (MEMORY, torch.eye(3).to_sparse()),
]


@pytest.mark.parametrize(("one", "other"), OVERLAPPING)
@pytest.mark.parametrize("is_nested", [True, False])
def test_a_collective_waits_for_an_all_reduce_in_its_memory(
    order: Order, inner: Inner, one: torch.Tensor, other: torch.Tensor, is_nested: bool
) -> None:
    _, future = all_reduce(order, one)
    arguments = {"tensors": [[torch.ones(1), other]]} if is_nested else {"tensor": other}
    call = InAThread(lambda: order.delegate(inner.collective, **arguments))
    assert call.waits
    assert not inner.begun
    future.set_result(one)
    assert call.result() is inner.begun[0]


@pytest.mark.parametrize(("one", "other"), OVERLAPPING)
def test_an_all_reduce_waits_for_whatever_is_in_its_memory(
    order: Order, inner: Inner, one: torch.Tensor, other: torch.Tensor
) -> None:
    work = order.delegate(inner.collective, [one])
    first = InAThread(lambda: all_reduce(order, other))
    assert first.waits
    work.done.set_result(one)
    _, future = first.result()
    second = InAThread(lambda: all_reduce(order, one))
    assert second.waits
    future.set_result(other)
    second.result()


@pytest.mark.parametrize(("one", "other"), DISJOINT)
def test_collectives_in_disjoint_memory_do_not_wait(
    order: Order, inner: Inner, one: torch.Tensor, other: torch.Tensor
) -> None:
    before, _ = all_reduce(order, one)
    work = order.delegate(inner.collective, [other])
    after, _ = all_reduce(order, one[:0])
    assert not before.is_completed()
    assert not work.is_completed()
    assert not after.is_completed()


def test_the_error_of_an_earlier_all_reduce_is_raised(order: Order, inner: Inner) -> None:
    tensor = torch.ones(3)
    _, future = all_reduce(order, tensor)
    call = InAThread(lambda: order.delegate(inner.collective, tensor))
    assert call.waits
    fail(future, LOST)
    assert isinstance(call.result(), WorkerLost)


def test_a_work_of_the_inner_group_is_left_to_its_caller(order: Order, inner: Inner) -> None:
    tensor = torch.ones(3)
    order.delegate(inner.collective, tensor)
    inner.begun.clear()
    all_reduce(order, tensor)
    assert order.delegate(lambda: None) is None


def test_the_end_waits_for_the_all_reduces_in_flight_whatever_their_outcome(order: Order) -> None:
    one, two = torch.ones(3), torch.ones(3)
    (_, first), (_, second) = all_reduce(order, one), all_reduce(order, two)
    end = InAThread(order.wait)
    fail(first, LOST)
    assert end.waits
    second.set_result(two)
    assert end.result() is None


def test_in_a_forked_child_the_end_waits_for_nothing(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    all_reduce(order, torch.ones(3))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    order.wait()


def test_a_barrier_that_no_thread_can_wait_for_fails_and_so_does_what_follows(
    order: Order, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    all_reduce(order, torch.ones(3))
    monkeypatch.setattr(completions, "submit", refuse)
    with pytest.raises(ResourceExhausted, match="ulimit -u"):
        order.barrier(inner.collective).wait()
    with pytest.raises(ResourceExhausted, match="ulimit -u"):
        order.delegate(inner.collective, torch.ones(1))
