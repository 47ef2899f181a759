"""Ranks that stop together: who asks, and the step in which all of them have the answer."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from reduction.errors import PeerLeft

from worker_plugin.riders import stopping
from worker_plugin.riders.stopping import Stopping


class Ranks:
    """Ranks that ask in turn; a sum is done when all have asked."""

    def __init__(self, count, *, is_at_once=False):
        self.all = [Stopping(is_at_once=is_at_once) for _ in range(count)]
        self.asked = [False] * count
        self.sums = []
        self.lock = threading.Lock()

    def step(self, monkeypatch):
        """Return the answers of all ranks in a step; each of them asks on its own main thread."""
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


def test_all_ranks_stop_in_the_step_after_one_was_asked(monkeypatch):
    ranks = Ranks(3)
    assert ranks.step(monkeypatch) == [False] * 3
    ranks.asked[1] = True
    assert ranks.step(monkeypatch) == [False] * 3
    assert ranks.step(monkeypatch) == [True] * 3
    assert ranks.step(monkeypatch) == [True] * 3


def test_no_rank_stops_before_all_have_asked(monkeypatch):
    ranks = Ranks(3)
    ranks.asked[1] = True
    ranks.step(monkeypatch)
    assert ranks.step(monkeypatch) == [True] * 3
    assert not ranks.sums, "each of them has waited for the sum of this step as well"


def test_closing_waits_for_the_last_sum_or_its_error(monkeypatch):
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


def test_a_single_rank_stops_at_once(monkeypatch):
    ranks = Ranks(1, is_at_once=True)
    assert ranks.step(monkeypatch) == [False]
    ranks.asked[0] = True
    assert ranks.step(monkeypatch) == [True]
