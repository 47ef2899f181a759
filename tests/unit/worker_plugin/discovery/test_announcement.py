"""The start of the first epoch: when a rank's core says so, who waits for it, and the line about it."""

import pytest
from reduction.errors import ClosedError, PeerLeft, ReducerUnavailable, WorkersMissing
from reduction.model import Configure
from support.rank_scene import Scene, epoch, failure

from worker_plugin.core.actions import Log
from worker_plugin.discovery.announcement import Beginning, line, ranks_text

# ---- the core ----


@pytest.mark.parametrize("rank", [0, 1])
def test_it_has_begun_when_every_reducer_has_started(rank):
    scene = Scene(rank)
    scene.meet()
    if rank:
        scene.enter()
    scene.start("b")
    assert scene.began == []
    scene.start("a")
    assert scene.began == [("a:1", "b:1")]


def test_it_begins_once():
    scene = Scene(1).run()
    scene.receive("a", Configure(epoch(2, "a")))
    scene.start("a", 2)
    assert scene.began == [("a:1", "b:1")]


def test_an_epoch_that_broke_before_it_started_is_no_beginning():
    scene = Scene(1)
    scene.meet()
    scene.enter()
    scene.start("a")
    scene.lose("b", now=0.1)
    assert scene.began == []
    scene.receive("a", Configure(epoch(2, "a")), now=1.2)
    scene.start("a", 2, now=1.2)
    assert scene.began == [("a:1",)]


def test_without_collectives_who_waits_hears_that_a_peer_left():
    scene = Scene()
    scene.tick(0.0)
    scene.connect()
    scene.welcome("a")
    assert failure(scene.peers("a", "PG")) == (
        PeerLeft,
        "rank 1 (h1) closed while this rank waits for results: see rank 1's log",
    )


def test_without_collectives_nobody_else_hears_it():
    scene = Scene()
    scene.tick(0.0)
    scene.welcome("a")
    assert scene.peers("a", "PG") == []


def test_who_waits_for_an_epoch_that_does_not_start_says_so():
    scene = Scene()
    scene.meet()
    scene.connect()
    texts = [action.text for action in scene.tick(5.0) if isinstance(action, Log)]
    assert texts == ["waiting for some rank to answer to epoch 1; giving up in 595 s"]


def test_who_waits_fails_when_reducers_or_ranks_do_not_come():
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


def test_after_the_beginning_nobody_waits_for_it():
    for scene in (Scene(1).run(), Scene(1)):
        scene.connect()
        scene.run()
        assert not scene.core.is_awaited
        scene.lose("a", now=1.0)
        assert [action for action in scene.tick(90.0) if isinstance(action, Log)] == []


# ---- threads ----


def test_the_first_outcome_counts():
    one = Beginning()
    one.succeed()
    one.fail(ClosedError("too late"))
    one.wait()
    other = Beginning()
    other.fail(ClosedError("first"))
    other.fail(ClosedError("second"))
    other.succeed()
    for _ in range(2):
        with pytest.raises(ClosedError, match="first"):
            other.wait()


# ---- words ----


def test_the_line():
    assert line("cnn", ranks_text(4), ["10.0.0.5:50051", "10.0.0.6:50051"], ["tcp"], is_private=False) == (
        "reduction-server: job cnn, 4 ranks, 2 reducers (10.0.0.5:50051, 10.0.0.6:50051), tcp"
    )
    assert line("cnn", ranks_text(1), ["127.0.0.1:5"], ["tcp", "grpc"], is_private=True) == (
        "reduction-server: job cnn, 1 rank, 1 private reducer (127.0.0.1:5), tcp and grpc"
    )


def test_many_reducers_are_counted():
    text = line("cnn", ranks_text(4), [f"r{number}:1" for number in range(10)], ["tcp"], is_private=False)
    assert text.endswith("4 ranks, 10 reducers (r0:1, r1:1, r2:1, r3:1, r4:1, r5:1, r6:1, r7:1, 2 more), tcp")


def test_ranks_of_nodes_and_groups():
    assert ranks_text(4, 2) == "4 ranks on 2 nodes"
    assert ranks_text(2, label="0,2") == "2 ranks (0,2)"
