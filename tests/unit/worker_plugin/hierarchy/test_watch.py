"""The failure of a node's other ranks: the error, the warning, and the note to them."""

import logging

import pytest
from reduction.errors import CollectiveTimeout, PeerLeft, ReducerUnavailable, WorkerLost

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.nodes import Locality, Node
from worker_plugin.hierarchy.neighbours import Ended, Kind, Note
from worker_plugin.hierarchy.watch import WATCH_S, Watch

CONFIG = PluginConfig(stall_warn_s=5.0, timeout_s=60.0)


class Scene:
    """Rank 5 of 8, local rank 1 of 4; the neighbours are stand-ins."""

    def __init__(self, local_rank=1, issued=8, works=()):
        members = tuple(Locality(4, i, 4, "place", "host", 100 + i, "00") for i in range(4))
        self.told = []
        self.failures = []
        self.error = None
        self.issued = issued
        self.works = works
        self.watch = Watch(CONFIG, Node(1, 2, local_rank, members), self, self)

    def tell(self, kind, *, number=0):
        self.told.append((kind, number))

    def first_from(self, seq):
        return next((work for work in self.works if work >= seq), None)

    def fail(self, error, tell=None):
        self.failures.append((type(error), str(error), tell))

    def wait(self, seq, since=0.0):
        self.watch._waiting = seq, since

    def look(self, now=0.0, *news):
        self.watch._look(self, list(news), now)
        return self.failures


def test_a_death_is_an_error_that_each_rank_detects_itself():
    assert Scene().look(0.0, Ended(2)) == [(WorkerLost, "rank 6 (host) is gone: its process has ended", None)]


def test_the_end_of_a_rank_that_has_left_is_not_an_error():
    assert Scene().look(0.0, Note(2, Kind.LEFT, 3), Ended(2)) == []


def test_a_rank_that_left_fails_later_collectives():
    scene = Scene(works=(1, 2))
    assert scene.look(0.0, Note(2, Kind.LEFT, 3)) == []
    scene.works = (2, 3, 4)
    text = "rank 6 (host) closed, but rank 5 (host) still issued collective 3: see its log"
    assert scene.look() == [(PeerLeft, text, None)]


def test_a_neighbors_error_is_adopted():
    note = Note(0, Kind.FAILED, code=WorkerLost.code, text="rank 1 is gone")
    assert Scene().look(0.0, note) == [(WorkerLost, "rank 1 is gone", None)]


def test_the_rails_error_is_reported_to_all():
    scene = Scene()
    scene.error = ReducerUnavailable("none is left")
    assert scene.look() == [(ReducerUnavailable, "none is left", Kind.FAILED)]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


WARN = CONFIG.stall_warn_s


def test_a_wait_is_reported_and_the_lowest_waiting_rank_warns(caplog):
    scene = Scene(local_rank=0)
    scene.wait(7)
    scene.look(WARN - 0.1)
    assert scene.told == []
    scene.look(WARN)
    assert scene.told == [(Kind.WAITS, 7)]
    scene.look(WARN + WATCH_S, Note(2, Kind.WAITS, 7))
    assert warnings(caplog) == []
    for _ in range(2):
        scene.look(WARN + 2 * WATCH_S)
    assert scene.told == [(Kind.WAITS, 7)]
    late = f"{WARN + 2 * WATCH_S:.0f} s: collective 7 is waiting for this in the node"
    text = f"rank 5 (host), rank 7 (host) are late by {late}"
    assert warnings(caplog) == [text]


def test_other_waiting_ranks_do_not_warn(caplog):
    scene = Scene(local_rank=2)
    scene.wait(7)
    for now in (WARN, WARN + 1, WARN + 2):
        scene.look(now, Note(0, Kind.WAITS, 7))
    assert warnings(caplog) == []


def test_a_late_rank_warns_about_itself(caplog):
    scene = Scene(issued=7)
    for _ in range(2):
        scene.look(0.0, Note(2, Kind.WAITS, 7))
    text = "other ranks of this node are waiting for this one, rank 5 (host), to issue collective 7"
    assert warnings(caplog) == [text]
    scene.issued = 9
    scene.look(0.0, Note(2, Kind.WAITS, 8))
    assert warnings(caplog) == [text]


def test_a_wait_that_is_too_long_names_the_late_rank():
    scene = Scene()
    scene.wait(7)
    scene.look(WARN)
    scene.look(59.9, Note(0, Kind.WAITS, 7), Note(2, Kind.WAITS, 7), Note(3, Kind.WAITS, 6))
    assert scene.failures == []
    text = (
        "rank 7 (host) is late by 60 s: collective 7 is waiting for this in the node; see the log there, or raise "
        "timeout_s (60 s)"
    )
    assert scene.look(60.0) == [(CollectiveTimeout, text, Kind.FAILED)]


def test_a_wait_for_no_rank_is_blamed_on_the_exchange():
    scene = Scene()
    scene.wait(7)
    scene.look(WARN, *(Note(i, Kind.WAITS, 7) for i in (0, 2, 3)))
    assert scene.look(60.0)[0][1].startswith("an exchange is late by 60 s: ")


@pytest.mark.parametrize("seq", [None, 8])
def test_a_wait_that_is_over_is_forgotten(seq):
    scene = Scene()
    scene.watch.wait(7)
    scene.watch.wait(seq)
    assert scene.look() == []
    assert scene.told == []
