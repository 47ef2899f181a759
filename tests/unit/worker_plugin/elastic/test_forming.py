"""A worker's part in forming generations, without a lobby."""

import threading
from types import SimpleNamespace

import pytest
from reduction.errors import WorkerLost

from worker_plugin.config import PluginConfig
from worker_plugin.elastic import forming
from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Generation, Worker


def heard(rank, settings, **changes):
    return Said(Worker(rank, f"nonce{rank}"), f"host{rank}", settings, **changes)


def test_a_newcomer_of_another_run_is_not_taken_in(monkeypatch):
    others = [
        heard(1, "run='x'", number=1),
        heard(2, "run='x'"),
        heard(3, "run='y'"),
        heard(4, "run='x'", is_gone=True),
    ]
    voices = {one.worker.nonce: one for one in others}
    monkeypatch.setattr(
        forming, "Voice", lambda config, own, on_news: SimpleNamespace(own=own, others=lambda: voices)
    )
    config = PluginConfig(job="job", rank=0, world_size=2)
    ours = forming.Forming(config, "run='x'", 1, threading.Condition(), lambda: None)
    assert ours.newcomers == [Worker(2, "nonce2")]


class Waiting:
    """A communicator whose other workers never come."""

    def __init__(self):
        self.is_abandoned = threading.Event()

    def connect(self):
        self.is_abandoned.wait()
        raise WorkerLost("abandoned")

    def abandon(self, error):
        self.is_abandoned.set()

    def begin_close(self):
        pass


@pytest.mark.parametrize("others", [[], [heard(1, "run='x'", number=2)]])
def test_a_worker_that_the_lobby_has_forgotten_is_not_waited_for(monkeypatch, others):
    """If the lobby says nothing at all, that says nothing about the worker."""
    voices = {one.worker.nonce: one for one in others}
    now = [0.0]

    def look():
        now[0] += 1.0
        return voices

    def voice(config, own, on_news):
        return SimpleNamespace(own=own, others=look, say=lambda **changes: None)

    monkeypatch.setattr(forming, "Voice", voice)
    monkeypatch.setattr(forming, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(forming, "PAUSE_S", 0.0)

    def check():
        if now[0] > 10 * forming.STOPPED_S:
            raise WorkerLost("the test is over")

    ours = forming.Forming(
        PluginConfig(job="job", rank=0, world_size=3), "run='x'", 1, threading.Condition(), check
    )
    generation = Generation(2, "id", (ours.own, Worker(1, "nonce1"), Worker(2, "nonce2")))
    error = ours._wait_for_start(Waiting(), generation.workers, lambda said: said.is_gone, None, generation)
    assert str(error) == ("nothing was heard of ranks [2] for 15 s" if others else "the test is over")
