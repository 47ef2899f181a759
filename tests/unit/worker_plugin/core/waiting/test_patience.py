"""Log lines of a rank that waits for reducers and ranks: when, how often, and their text."""

import pytest
from reduction.errors import ReducerAbsent, ReducerUnavailable
from reduction.model import Configure, Peer, Presence, Waiting
from support.scenes.rank_scene import Scene, epoch, nonce

from worker_plugin.core.actions import Log

INFO, WARNING = 20, 30


def said(actions):
    """Return (level, text) of every logged line."""
    return [(action.level, action.text) for action in actions if isinstance(action, Log)]


def test_a_wait_is_logged_after_5_s_then_every_15_s():
    scene = Scene(reducers="a")
    times = [now for now in range(100) if said(scene.tick(float(now)))]
    assert times[:4] == [5, 20, 35, 50]
    scene = Scene(reducers="a").run()
    assert said(scene.tick(3.0)) == said(scene.tick(30.0)) == [], "an epoch runs"
    scene.issue(now=31.0)
    scene.lose("a", now=32.0)
    scene.tick(32.0)
    assert said(scene.tick(37.0)) == [(WARNING, "waiting for reducer a:1 (no answer); giving up in 55 s")]


def test_reducers_that_cannot_be_reached_are_named_with_the_reason():
    scene = Scene(join_timeout_s=60.0)
    scene.tick(0.0)
    scene.lose("a", ReducerAbsent("a:1: UNAVAILABLE: connect failed: Connection refused"))
    scene.lose("b", ReducerUnavailable("b:1: UNAVAILABLE: no route"))
    assert said(scene.tick(5.0)) == [
        (
            WARNING,
            "waiting for reducers a:1 (connection refused), b:1 (UNAVAILABLE: no route); giving up in 55 s; "
            "is `reducer serve` running there?",
        )
    ]


def test_many_reducers_are_counted():
    scene = Scene(reducers="abcdefghij")
    scene.tick(0.0)
    ((_, text),) = said(scene.tick(5.0))
    assert ", ".join(f"{name}:1 (no answer)" for name in "abcdefgh") + ", 2 more; " in text


def test_rank_0_names_the_ranks_that_have_not_come():
    scene = Scene(world_size=4)
    scene.tick(0.0)
    scene.welcome("a")
    scene.welcome("b")
    scene.peers("a", "P-P-")
    scene.peers("b", "P---")
    assert said(scene.tick(5.0)) == [
        (WARNING, "waiting for ranks 1 and 3 to connect to the reducers; giving up in 595 s")
    ]


def test_other_ranks_name_rank_0_or_refer_to_its_log():
    scene = Scene(1)
    scene.tick(0.0)
    scene.welcome("a")
    scene.welcome("b")
    scene.peers("a", "--")
    assert said(scene.tick(5.0)) == [
        (WARNING, "waiting for rank 0 to connect to the reducers; giving up in 595 s")
    ]
    scene.peers("a", "P-")
    assert said(scene.tick(20.0)) == [
        (INFO, "waiting for rank 0, which logs what it is waiting for; giving up in 580 s")
    ]


def test_one_reducer_and_one_rank_are_both_named():
    scene = Scene()
    scene.tick(0.0)
    scene.welcome("a")
    scene.peers("a", "P-")
    assert [text.partition(";")[0] for _, text in said(scene.tick(5.0))] == [
        "waiting for reducer b:1 (no answer)",
        "waiting for rank 1 to connect to the reducers",
    ]


@pytest.mark.parametrize(("rank", "level"), [(0, WARNING), (1, INFO)])
def test_an_epoch_that_does_not_start_names_who_has_not_answered(rank, level):
    scene = Scene(rank)
    scene.meet()
    scene.issue()
    if rank:
        scene.receive("a", Configure(epoch(1)))
    assert "waiting for some rank to respond to membership epoch 1" in said(scene.tick(5.0))[0][1]
    missing = (Peer(1, nonce(1), "h1", Presence.PRESENT),)
    scene.receive("a", Waiting(0, 0, 5.0, 1, missing, epoch=1))
    scene.receive("b", Waiting(0, 0, 5.0, 1, missing, epoch=7))
    assert said(scene.tick(20.0)) == [
        (level, "waiting for rank 1 (h1) to respond to membership epoch 1; giving up in 580 s")
    ]


@pytest.mark.parametrize(
    ("rank", "others"), [(0, []), (1, [(INFO, "waiting for rank 0, which logs what it is waiting for")])]
)
def test_waiting_for_a_member_to_return_names_it(rank, others):
    scene = Scene(rank, on_reducer_loss="wait").run()
    scene.issue(now=9.0)
    scene.tick(9.0)
    scene.lose("b", ReducerUnavailable("b:1: reset"), now=10.0)
    scene.tick(10.0)
    lost = (WARNING, "waiting for reducer b:1 (reset); giving up in 55 s")
    assert [
        (level, text) if "b:1" in text else (level, text.partition(";")[0])
        for level, text in said(scene.tick(15.0))
    ] == [lost, *others]


def test_a_rank_with_nothing_in_flight_waits_for_nobody():
    scene = Scene().run()
    scene.lose("a", now=1.0)
    scene.lose("b", now=1.0)
    assert said(scene.tick(10.0)) == said(scene.tick(11.0)) == []
    scene.issue(now=12.0)
    scene.tick(12.0)
    assert len(said(scene.tick(17.0))) == 1
