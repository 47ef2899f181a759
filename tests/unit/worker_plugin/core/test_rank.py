"""A rank's communicator: failures and time. Closing, epochs and links have their own files."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DataCorrupted,
    LocalProtocolError,
    OutOfOrder,
    PeerLeft,
    ReducerUnavailable,
    ReductionError,
    WorkerLost,
    code_to_others,
)
from reduction.model import Abort, Ack, Configure, Minimum, Result, Start, Welcome
from support.scenes.rank_scene import (
    CHUNK,
    CREDIT,
    Scene,
    data,
    epoch,
    failure,
    incarnation,
    of_kib,
    peers,
    send,
)

from worker_plugin.core.actions import Closed, Fail, Log, Open, Shut
from worker_plugin.core.events import Broke, Found, Issued, Received, StreamLost, Tick

BROKEN = LocalProtocolError("the disk is on fire")


def aborts(error, reducers="ab", rank=0):
    frame = Abort(code_to_others(error), f"rank {rank} (h{rank}): {error}")
    return [send(reducer, frame) for reducer in reducers]


# ---- failing ----


@pytest.mark.parametrize(
    "error",
    [CollectiveMismatch("rank 1 issued"), WorkerLost("rank 1"), OutOfOrder("no"), ReductionError("a bug")],
)
def test_an_abort_fails_with_its_error_and_is_passed_on_to_all_reducers(error):
    scene = Scene().run()
    actions = scene.abort("a", error)
    assert failure(actions) == (type(error), str(error))
    assert actions[:-1] == aborts(error)


def test_a_failure_in_this_process_reaches_the_others():
    actions = Scene(rank=1).run().handle(Broke(BROKEN))
    assert actions == [*aborts(BROKEN, rank=1), Fail(BROKEN)]


def test_after_a_failure_only_close_is_answered():
    scene = Scene().run()
    scene.abort("a", WorkerLost("rank 1"))
    assert scene.issue() == scene.tick(9.0) == scene.peers("a", "PG") == []
    assert scene.close() == [Closed()]


def test_a_peer_that_left_fails_the_next_collective_and_is_named():
    scene = Scene().run()
    scene.issue()
    scene.result("a", 0)
    assert scene.peers("b", "PG") == []
    assert scene.tick(100.0) == [send("a", Ack(1)), send("b", Ack(1))]
    actions = scene.issue(now=100.0)
    kind, text = failure(actions)
    assert kind is PeerLeft
    assert "rank 1 (h1)" in text
    assert "collective 1" in text
    assert actions[:-1] == aborts(PeerLeft(text))


def test_a_dead_rank_fails_within_the_grace_even_when_idle():
    scene = Scene().run()
    for reducer in "ab":
        text = f"lost the stream of rank 1 to {reducer}:1"
        assert scene.peers(reducer, "PL", now=1.0) == [Log(20, text)]
    assert scene.tick(1.9) == []
    assert failure(scene.tick(2.0))[0] is WorkerLost


# ---- time ----


def test_time_counts_from_the_first_push_not_from_the_issue():
    scene = Scene(timeout_s=40.0, stall_warn_s=100.0)
    scene.meet()
    scene.issue(now=0.0)
    assert scene.tick(30.0) == []
    scene.start("a", now=30.0)
    scene.start("b", now=30.0)
    assert scene.tick(69.9) == []
    assert failure(scene.tick(70.0))[0] is CollectiveTimeout


def test_time_before_the_first_tick_does_not_count():
    # The loop may be late. No waiting time counts before it has dialled.
    scene = Scene()
    assert scene.lose("a", now=1000.0) == []
    assert scene.tick(1000.0)[-1].link == 1


# ---- damage ----


def test_rank_0_configures_checksums_if_it_was_told_to():
    scene = Scene(checksums=True)
    assert not scene.core.has_checksums
    assert scene.run().core.has_checksums
    assert not Scene().run().core.has_checksums


def test_a_push_that_arrived_damaged_costs_the_stream_and_not_the_job():
    scene = Scene().run()
    scene.issue()
    actions = scene.abort("a", DataCorrupted("Push of chunk 0 arrived damaged"), now=1.0)
    assert Shut(0) in actions
    assert scene.core.error is None
    assert Open(0, "a:1", scene.join()) in scene.tick(1.0)


# ---- whatever a reducer sends ----

SMALL = st.integers(0, 3)
RANKS = st.text("PLG-", min_size=0, max_size=3)
FRAMES = st.one_of(
    st.builds(Welcome, incarnation=st.sampled_from("abc").map(incarnation), credit_bytes=st.just(CREDIT)),
    st.builds(peers, RANKS, draining=st.booleans()),
    st.builds(Configure, st.builds(epoch, st.integers(1, 4), st.sampled_from(["a", "b", "ab", "abc"]))),
    st.builds(Start, epoch=SMALL, minimum=SMALL),
    st.builds(
        Result,
        epoch=SMALL,
        seq=SMALL,
        chunk=SMALL,
        minimum=SMALL,
        payload=st.sampled_from([0, CHUNK]).map(data),
    ),
    st.builds(Minimum, SMALL),
    st.builds(Abort, code=st.integers(0, 15), message=st.just("why")),
)
LINKS = st.integers(0, 1)
EVENTS = st.one_of(
    st.builds(Received, LINKS, FRAMES),
    st.builds(StreamLost, LINKS, st.sampled_from([None, ReducerUnavailable("reset")])),
    st.builds(Issued, st.integers(0, 3).map(of_kib)),
    st.just(Tick()),
)


@given(st.integers(0, 1), st.booleans(), st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.1, 2.0]))))
def test_nothing_a_reducer_sends_makes_it_raise(rank, is_running, script):
    scene = Scene(rank=rank)
    now = 0.0
    if is_running:
        scene.run()
    for event, pause in script:
        now += pause
        for action in scene.handle(event, now):
            assert not isinstance(action, Fail) or isinstance(action.error, ReductionError)


def test_epochs_are_logged_as_warnings_until_all_lost_reducers_are_back():
    """The processes of a restarted reducer come up one after the other."""
    scene = Scene(reducers="abc").run()
    for lost in "bc":
        scene.lose(lost, now=1.0)
    actions = scene.tick(3.0)
    scene.start("a", scene.core.epochs.number, now=3.0)
    for number, back in enumerate("bc", 4):
        scene.welcome(back, now=number)
        actions += scene.peers(back, "PP", now=number) + scene.tick(number + 0.5)
        for reducer in "abc"[: number - 2]:
            scene.start(reducer, scene.core.epochs.number, now=number + 0.6)
    assert scene.core.epochs.size == 3
    assert [action.level for action in actions if isinstance(action, Log)] == [logging.WARNING] * 3
    scene.handle(Found(("a:1", "b:1", "c:1", "d:1")), 7.0)  # which is a different kind of news
    actions = [
        *scene.tick(7.0),
        *scene.welcome("d", now=7.0),
        *scene.peers("d", "PP", now=7.0),
        *scene.tick(8.0),
    ]
    actions = [action for action in actions if isinstance(action, Log)]
    assert any("with 4 reducers" in action.text for action in actions), actions
    assert all(action.level == logging.INFO for action in actions), actions


def test_so_they_are_if_a_reducer_was_missing_from_the_start():
    scene = Scene(reducers="abcd")
    scene.tick(0.0)
    for reducer in "abc":
        scene.welcome(reducer, now=0.1)
        scene.peers(reducer, "PP", now=0.1)
    scene.tick(1.0)
    scene.tick(62.0)
    assert scene.core.epochs.size == 3
    for reducer in "abc":
        scene.start(reducer, 1, now=62.0)
    scene.lose("c", now=63.0)
    actions = scene.tick(66.0)
    for reducer in "ab":
        scene.start(reducer, 2, now=66.0)
    for number, back in enumerate("cd"):
        scene.welcome(back, now=67.0 + number)
        actions += scene.peers(back, "PP", now=67.0 + number) + scene.tick(67.5 + number)
        for reducer in "abcd"[: 3 + number]:
            scene.start(reducer, scene.core.epochs.number, now=67.6 + number)
    assert scene.core.epochs.size == 4
    levels = {
        action.text: action.level for action in actions if isinstance(action, Log) and "epoch" in action.text
    }
    assert len(levels) == 3
    assert set(levels.values()) == {logging.WARNING}, levels
