"""Futures for C++ waiters: they get the value or the error, whatever another thread does meanwhile."""

import threading
import time

import pytest
import torch
from reduction.errors import WorkerLost

from worker_plugin.tensors.futures import fail, make_future, outcome_after, raise_in_waiter

TENSOR = torch.ones(3)
ERROR = WorkerLost("rank 1 is gone")


class Busy:
    """A future that another thread completes as soon as it has a callback, which is then called late."""

    def __init__(self, complete):
        self._future = make_future(TENSOR)
        self._complete = complete
        self._thread = None
        self._may_call = threading.Event()

    def add_done_callback(self, callback):
        self._future.add_done_callback(self._slow(callback))
        self._finish()

    def then(self, callback):
        if self._thread is not None:  # already complete
            return self._future.then(callback)
        child = self._future.then(self._slow(callback))
        self._finish()
        return child

    def let_go(self):
        self._may_call.set()
        self._thread.join()

    def _slow(self, callback):
        def call(done):
            assert self._may_call.wait(10.0)
            return callback(done)

        return call

    def _finish(self):
        self._thread = threading.Thread(target=self._complete, args=(self._future,))
        self._thread.start()
        deadline = time.monotonic() + 10.0
        while not self._future.done():
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_result_that_arrives_while_the_waiter_is_created():
    busy = Busy(lambda future: future.set_result(TENSOR))
    waiter = raise_in_waiter(busy)
    busy.let_go()
    assert waiter.wait() is TENSOR


def test_an_error_that_arrives_while_the_waiter_is_created():
    busy = Busy(lambda future: fail(future, WorkerLost("rank 1 is gone")))
    waiter = raise_in_waiter(busy)
    busy.let_go()
    with pytest.raises(RuntimeError, match="WorkerLost: rank 1 is gone"):
        waiter.wait()


@pytest.mark.parametrize("is_done", [False, True])
def test_a_future_may_be_done_before_or_after(is_done):
    future = make_future(TENSOR)
    if is_done:
        future.set_result(TENSOR)
    waiter = raise_in_waiter(future)
    if not is_done:
        future.set_result(TENSOR)
    assert waiter.wait() is TENSOR


def test_an_outcome_also_waits_for_another_future():
    for complete, expected in (
        (lambda one: one.set_result(TENSOR), None),
        (lambda one: fail(one, ERROR), ERROR),
    ):
        first, ended = make_future(TENSOR), torch.futures.Future()
        last = outcome_after(ended, first, TENSOR)
        complete(first)
        assert not last.done()
        ended.set_result(None)
        assert last.done()
        if expected is None:
            assert last.wait() is TENSOR
        else:
            with pytest.raises(WorkerLost, match="rank 1 is gone"):
                last.wait()
