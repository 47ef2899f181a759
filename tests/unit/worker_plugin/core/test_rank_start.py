"""The start of the first epoch: when a rank's core reports it, and the news that waiting ranks get."""

import pytest
from reduction.errors import PeerLeft, ReducerUnavailable, WorkersMissing
from reduction.model import Configure
from support.scenes.rank_scene import Scene, epoch, failure

from worker_plugin.core.actions import Log


@pytest.mark.parametrize("rank", [0, 1])
def test_it_has_begun_once_every_reducer_has_started(rank):
    scene = Scene(rank)
    scene.meet()
    if rank:
        scene.enter()
    scene.start("b")
    assert scene.began == []
    scene.start("a")
    assert scene.began == [("a:1", "b:1")]
    if rank:
        scene.receive("a", Configure(epoch(2, "a")))
        scene.start("a", 2)
        assert scene.began == [("a:1", "b:1")], "it begins once"


def test_an_epoch_that_broke_before_it_started_does_not_count():
    scene = Scene(1)
    scene.meet()
    scene.enter()
    scene.start("a")
    scene.lose("b", now=0.1)
    assert scene.began == []
    scene.receive("a", Configure(epoch(2, "a")), now=1.2)
    scene.start("a", 2, now=1.2)
    assert scene.began == [("a:1",)]


def test_without_collectives_only_a_waiting_rank_fails_if_a_peer_left():
    idle, waiting = Scene(), Scene()
    for scene in (idle, waiting):
        scene.tick(0.0)
        if scene is waiting:
            scene.connect()
        scene.welcome("a")
    assert idle.peers("a", "PG") == []
    kind, text = failure(waiting.peers("a", "PG"))
    assert kind is PeerLeft
    assert "rank 1 (h1)" in text


def test_waiting_fails_when_reducers_or_ranks_do_not_arrive():
    scene = Scene(join_timeout_s=3.0)
    scene.tick(0.0)
    scene.connect()
    assert failure(scene.tick(3.0))[0] is ReducerUnavailable
    scene = Scene(timeout_s=3.0)
    scene.tick(0.0)
    scene.connect()
    scene.welcome("a")
    scene.peers("a", "P-")
    assert failure(scene.tick(3.0))[0] is WorkersMissing


def test_once_begun_the_start_is_no_longer_awaited():
    for scene in (Scene(1).run(), Scene(1)):
        scene.connect()
        scene.run()
        assert not scene.core.is_awaited
        scene.lose("a", now=1.0)
        assert [action for action in scene.tick(90.0) if isinstance(action, Log)] == []
