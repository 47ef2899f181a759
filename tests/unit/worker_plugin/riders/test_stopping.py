"""Ranks that stop together: who asks, and in which step all of them have the answer."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reduction.errors import ConfigError, PeerLeft

from worker_plugin.riders import stopping
from worker_plugin.riders.stopping import Stopping


class Ranks:
    """Some ranks that ask in turn; a sum is done when all have asked."""

    def __init__(self, count, *, is_at_once=False):
        self.all = [Stopping(is_at_once=is_at_once) for _ in range(count)]
        self.asked = [False] * count
        self.sums = []
        self.lock = threading.Lock()

    def step(self, monkeypatch):
        """Return what all ranks get in a step; each of them asks on its own main thread."""
        own = threading.local()
        monkeypatch.setattr(stopping, "is_asked", lambda _: own.asked)
        monkeypatch.setattr(threading, "main_thread", threading.current_thread)

        def ask(rank):
            own.asked = self.asked[rank]
            return self.all[rank].ask(self._all_reduce)

        with ThreadPoolExecutor(len(self.all)) as threads:
            return list(threads.map(ask, range(len(self.all))))

    def _all_reduce(self, tensor, op):
        assert op == torch.distributed.ReduceOp.MAX
        future = torch.futures.Future()
        with self.lock:
            self.sums.append((tensor, future))
            if len(self.sums) == len(self.all):
                total = torch.stack([tensor for tensor, _ in self.sums]).amax(0)
                for _, future_of_one in self.sums:
                    future_of_one.set_result(total)
                self.sums.clear()
        return future


@pytest.fixture(autouse=True)
def not_armed(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(stopping, "_is_armed", False)
    monkeypatch.setattr(stopping, "_asked", threading.Event())
    yield
    signal.signal(signal.SIGTERM, before)


def test_all_ranks_stop_in_the_step_after_one_was_asked(monkeypatch):
    ranks = Ranks(3)
    assert ranks.step(monkeypatch) == [False] * 3
    ranks.asked[1] = True
    assert ranks.step(monkeypatch) == [False] * 3
    assert ranks.step(monkeypatch) == [True] * 3
    assert ranks.step(monkeypatch) == [True] * 3


def test_nobody_goes_before_all_have_asked(monkeypatch):
    ranks = Ranks(3)
    ranks.asked[1] = True
    ranks.step(monkeypatch)
    assert ranks.step(monkeypatch) == [True] * 3
    assert not ranks.sums, "each of them has waited for the sum of this step as well"


def test_who_closes_waits_for_the_last_sum_or_its_error(monkeypatch):
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    one, last = Stopping(is_at_once=False), torch.futures.Future()
    assert not one.ask(lambda *_: last)
    closing = threading.Thread(target=one.settle)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    last.set_exception(PeerLeft("rank 0 closed"))
    closing.join(10)
    assert not closing.is_alive()


def test_one_that_is_alone_stops_at_once(monkeypatch):
    ranks = Ranks(1, is_at_once=True)
    assert ranks.step(monkeypatch) == [False]
    ranks.asked[0] = True
    assert ranks.step(monkeypatch) == [True]


def test_a_signal_asks_and_the_handler_that_was_there_is_called():
    called = []
    signal.signal(signal.SIGTERM, lambda *given: called.append(given[0]))
    stopping.arm()
    stopping.arm()
    assert not stopping._asked.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping._asked.is_set()
    assert called == [signal.SIGTERM]


def test_without_a_handler_the_process_lives_on():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stopping.arm()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopping._asked.is_set()


def test_another_thread_cannot_take_the_signal_over():
    errors = []

    def run():
        try:
            stopping.arm()
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "call them first on the main thread" in str(errors[0])
