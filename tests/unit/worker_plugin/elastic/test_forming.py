"""A worker's part in forming generations, without a lobby."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from reduction.errors import WorkerLost

from worker_plugin.config import PluginConfig
from worker_plugin.elastic import forming
from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Generation, Worker


def heard(rank, settings, **changes):
    return Said(Worker(rank, f"nonce{rank}"), f"host{rank}", settings, **changes)


@pytest.fixture
def make(monkeypatch):
    """Return a factory for rank 0's part in forming generations of a job; `others` are the other workers' entries."""

    def make(others, *, check=lambda: None, world_size=2, hears=True):
        voice = SimpleNamespace(others=others, hears=hears, say=lambda **changes: None)

        def as_own(config, own, on_news):
            voice.own = own
            return voice

        monkeypatch.setattr(forming, "Voice", as_own)
        config = PluginConfig(job="job", rank=0, world_size=world_size)
        return forming.Forming(config, "run='x'", 1, threading.Condition(), check), voice

    return make


def test_a_newcomer_of_another_run_is_not_taken_in(make):
    others = [
        heard(1, "run='x'", number=1),
        heard(2, "run='x'"),
        heard(3, "run='y'"),
        heard(4, "run='x'", is_gone=True),
    ]
    ours, _ = make(lambda: {one.worker.nonce: one for one in others})
    assert ours.newcomers == [Worker(2, "nonce2")]


def test_a_new_worker_knows_since_when_it_has_not_heard_the_job(make):
    heard_now = {}
    ours, _ = make(lambda: heard_now)

    def silent_since(now, *others):
        heard_now.clear()
        heard_now.update({one.worker.nonce: one for one in others})
        return ours._hearing(now, 0.0).silent_since

    new = heard(3, "run='x'")
    one, two = (heard(rank, "run='x'", number=4) for rank in (1, 2))
    assert silent_since(1.0, new) is None  # it knows of no job
    assert silent_since(2.0, new, one, two) is None
    assert silent_since(3.0, new) == 2.0
    assert silent_since(4.0, replace(one, is_gone=True)) == 2.0
    assert silent_since(5.0, replace(one, is_gone=True), replace(two, is_gone=True)) is None
    assert silent_since(6.0) == 2.0
    assert silent_since(7.0, one) is None
    assert silent_since(8.0, replace(one, is_gone=True)) is None


def test_a_worker_knows_since_when_it_has_heard_a_reducer(make):
    ours, voice = make(dict)
    since = []
    for now, voice.hears in enumerate([False, True, True, False, True]):
        since.append(ours._hearing(now, 0.0).heard_since)
    assert since == [None, 1, 1, None, 4]


class Waiting:
    """A communicator whose other workers never join."""

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
def test_a_worker_that_the_lobby_has_forgotten_is_not_waited_for(make, monkeypatch, others):
    """If the lobby sends nothing at all, that is no evidence about the worker."""
    now = [0.0]

    def look():
        now[0] += 1.0
        return {one.worker.nonce: one for one in others}

    def check():
        if now[0] > 10 * forming.STOPPED_S:
            raise WorkerLost("the test is over")

    monkeypatch.setattr(forming, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(forming, "PAUSE_S", 0.0)
    ours, _ = make(look, check=check, world_size=3)
    generation = Generation(2, "id", (ours.own, Worker(1, "nonce1"), Worker(2, "nonce2")))
    error = ours._wait_for_start(Waiting(), generation.workers, lambda said: said.is_gone, None, generation)
    assert str(error) == ("nothing was heard from ranks [2] for 15 s" if others else "the test is over")


@pytest.mark.parametrize(
    ("changes", "comes"),
    [
        ({"number": 2, "generation": "id"}, True),
        ({"number": 1, "generation": "before"}, True),
        ({"number": 2, "generation": "another"}, False),
        ({"number": 3, "generation": "next"}, False),
        ({"number": 1, "generation": "before", "missed": "id"}, False),
        ({"number": 1, "generation": "before", "is_gone": True}, False),
    ],
)
def test_a_worker_of_another_generation_is_not_waited_for(make, changes, comes):
    """It may have proposed one of the same number at the same time."""
    other = heard(1, "run='x'", **changes)
    looks = iter(range(3))

    def check():
        if next(looks, None) is None:
            raise WorkerLost("the test is over")

    ours, _ = make(lambda: {"nonce1": other}, check=check)
    assert not ours._has_started(Waiting(), Generation(2, "id", (ours.own, other.worker)))
    assert (next(looks, None) is None) == comes


def test_a_restarted_worker_counts_as_lost(make):
    others = {}
    ours, _ = make(lambda: others)
    first, second = Worker(1, "aa"), Worker(1, "bb")
    others["bb"] = Said(second, "host1", "run='x'")
    generation = Generation(3, "id", (ours.own, first))
    assert ours.replaced(generation) is None
    others["bb"] = Said(second, "host1", "run='x'", former=("aa", 3))
    assert ours.replaced(generation) == first
    assert ours.replaced(Generation(4, "next", (ours.own, second))) is None
