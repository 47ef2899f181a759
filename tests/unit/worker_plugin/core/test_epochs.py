"""Entering epochs, starting them, and the causes of new ones, for one rank through the communicator."""

import pytest
from reduction.errors import CollectiveTimeout, OutOfOrder, ReducerDraining, ReducerUnavailable, StaleInstance
from reduction.model import Configure, Hello, Minimum, Welcome
from support.scenes.rank_scene import CREDIT, Scene, data, epoch, failure, of_kib, push, send, store

from worker_plugin.core.actions import Deliver, Fail, Log, Open, PushChunk, Release, Shut

CAUSE = "a stream broke, and all have reconnected"


# ---- entering an epoch ----


def test_rank_0_makes_the_first_epoch_and_greets_every_member():
    scene = Scene()
    assert scene.meet() == [
        Log(20, "all ranks (2) have joined all reducers: membership epoch 1 with 2 reducers (a:1, b:1)"),
        send("a", Hello(epoch(1), 0)),
        send("b", Hello(epoch(1), 0)),
    ]


def test_other_ranks_take_rank_0s_configuration_from_whichever_member_sends_it_first():
    scene = Scene(rank=1)
    scene.meet()
    assert scene.receive("b", Configure(epoch(1))) == [
        send("a", Hello(epoch(1), 0)),
        send("b", Hello(epoch(1), 0)),
    ]
    assert scene.receive("a", Configure(epoch(1))) == [], "the same again"


def test_changes_of_members_or_shares_are_counted_and_a_change_of_grid_is_not():
    scene = Scene(rank=1)
    epochs = scene.core.epochs
    assert (epochs.size, epochs.resharded) == (0, 0)
    scene.meet()
    scene.enter(1)
    assert (epochs.size, epochs.resharded) == (2, 0)
    scene.enter(2, chunk_bytes=128 * 1024)
    assert epochs.resharded == 0
    scene.enter(3, reducers="b")
    assert (epochs.size, epochs.resharded) == (1, 1)


def test_an_older_configuration_is_ignored():
    scene = Scene(rank=1)
    scene.meet()
    scene.enter(5)
    assert scene.enter(4) == []


def test_a_configuration_of_another_life_of_the_job_fails():
    scene = Scene(rank=1)
    scene.meet()
    scene.enter(1)
    actions = scene.enter(2, instance=bytes(16))
    assert failure(actions) == (StaleInstance, "received a configuration of another instance of this job")


def test_a_member_that_comes_up_later_is_sent_hello_on_its_welcome():
    scene = Scene(rank=1)
    scene.tick(0.0)
    scene.welcome("a")
    assert scene.enter() == [send("a", Hello(epoch(1), 0))]
    assert scene.welcome("b") == [send("b", Hello(epoch(1), 0))]


def test_a_member_is_sent_hello_once_per_epoch_on_each_stream():
    """If the epoch has not started there, the first Hello was lost with its stream."""
    scene = Scene(rank=1).run()
    assert scene.enter() == []
    scene.lose("a", now=1.0)
    scene.tick(1.0)
    assert scene.welcome("a", now=1.1) == [send("a", Hello(epoch(1), 0))]
    assert scene.enter(2) == [send("a", Hello(epoch(2), 0)), send("b", Hello(epoch(2), 0))]


# ---- Start ----


def test_start_pushes_everything_already_issued():
    scene = Scene()
    scene.meet()
    assert scene.issue() == []
    assert scene.issue() == []
    assert scene.start("b") == [push("b", 1)]
    assert scene.start("a") == [push("a", 0)]


def test_start_of_an_epoch_that_this_rank_has_left_is_ignored():
    scene = Scene(rank=1)
    scene.meet()
    assert scene.start("a", 1) == []
    scene.enter(2)
    assert scene.start("a", 1) == []


def test_start_twice_or_without_hello_is_out_of_order():
    twice = Scene(rank=1).run()
    no_member = Scene(rank=1)
    no_member.meet()
    assert no_member.enter(reducers="b") == [send("b", Hello(epoch(1, "b"), 0))]
    # Configured while a is down and back as another process, so the member received no Hello.
    another = Scene(rank=1)
    another.meet()
    another.lose("a", now=0.0)
    another.receive("b", Configure(epoch(1)))
    another.tick(0.0)
    another.receive("a", Welcome(b"another process.", CREDIT))
    for scene in (twice, no_member, another):
        kind, text = failure(scene.start("a"))
        assert kind is OutOfOrder
        assert text.startswith("a:1 started epoch 1 ")


@pytest.mark.parametrize("minimum", [0, 3])
def test_start_may_only_ask_for_what_this_rank_still_has(minimum):
    scene = Scene(rank=1, reducers="a").run()
    for seq in range(2):
        scene.issue()
        scene.result("a", seq, minimum=min(seq, 1))
    scene.enter(2)
    text = f"a:1 asks for collectives from {minimum} on; this rank has 1 to 2"
    assert failure(scene.start("a", 2, minimum)) == (OutOfOrder, text)


# ---- a new epoch ----


def test_everything_from_the_starts_minimum_on_is_pushed_again_in_order():
    scene = Scene(rank=1, reducers="a").run()
    for _ in range(3):
        scene.issue()
    scene.result("a", 0)
    assert scene.enter(2) == [send("a", Hello(epoch(2, "a"), 1))]
    assert scene.issue() == [], "a rank pushes only on a stream that has answered Start"
    pushes = [push("a", seq, number=2, held=1, is_awaited=seq > 0) for seq in range(4)]
    assert scene.start("a", 2, minimum=0) == pushes


def test_a_result_may_come_again_after_its_release():
    # Reducer b has learned that all ranks hold collective 0 before a's repeated result arrives here.
    scene = Scene(rank=1).run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("b", 0, 1)
    scene.enter(2)
    scene.start("a", 2)
    scene.start("b", 2)
    assert scene.receive("b", Minimum(1)) == [Release(0)]
    assert scene.result("a", 0, 0, epoch=2) == []


def test_a_new_grid_discards_partial_results_and_pushes_whole_results_again():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(2)
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("a", 0, 1)
    scene.result("a", 1, 0)
    scene.enter(2, chunk_bytes=2048)
    assert scene.start("a", 2) == [
        PushChunk(0, 2, 0, 0, of_kib(2), 1, 0, 2048, False),
        PushChunk(0, 2, 1, 0, of_kib(2), 1, 0, 2048, True),
    ]
    assert scene.result("a", 0, 0, epoch=2, payload=data(2048)) == []
    assert scene.result("a", 1, 0, epoch=2, payload=data(2048)) == [store(1, 0, nbytes=2048), Deliver(1)]


def test_a_chunk_with_a_result_is_pushed_again_and_awaits_none():
    """A wrong answer could write a result into memory that is complete, or that belongs to another collective."""
    scene = Scene(rank=1, reducers="a").run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.enter(2)
    assert scene.start("a", 2) == [
        push("a", 0, 0, kib=2, number=2, is_awaited=False),
        push("a", 0, 1, kib=2, number=2),
    ]
    assert scene.result("a", 0, 0, epoch=2) == [], "only its credit counts"
    assert scene.result("a", 0, 1, epoch=2) == [store(0, 1024), Deliver(0)]
    assert scene.enter(3) == [send("a", Hello(epoch(3, "a"), 1))]
    again = [push("a", 0, chunk, kib=2, number=3, held=1, is_awaited=False) for chunk in (0, 1)]
    assert scene.start("a", 3) == again
    assert scene.result("a", 0, 0, epoch=3) == []


def test_a_collective_after_a_complete_one_awaits_its_result():
    scene = Scene(rank=1).run()
    scene.issue(2)
    scene.result("a", 0, 0)
    scene.result("b", 0, 1)
    scene.enter(2)
    scene.start("a", 2)
    assert scene.start("b", 2, minimum=1) == [Release(0)]
    assert [action.is_awaited for action in scene.issue(1)] == [True]


def test_a_new_epoch_takes_back_the_memory_of_outstanding_results():
    """Results of an old epoch are no longer checked, so they must not share memory with a checked result."""
    scene = Scene(1).run()
    scene.issue(4)
    assert scene.diverted == []
    scene.enter(2)
    assert scene.diverted == ["a", "b"]
    scene.enter(3)
    assert scene.diverted == ["a", "b"], "nothing was pushed since"
    scene.start("b", 3)
    scene.lose("b")
    scene.enter(4)
    assert scene.diverted == ["a", "b"], "its stream has ended"


# ---- streams that break ----


def test_a_lost_stream_of_a_member_is_logged_and_makes_a_new_epoch_once_all_are_back():
    scene = Scene().run()
    lost = "lost the stream to a:1: connection reset"
    assert scene.lose("a", ReducerUnavailable("connection reset"), now=1.0) == [Log(30, lost)]
    scene.tick(1.0)
    assert scene.welcome("a", now=1.1) == [send("a", Hello(epoch(1), 0))]
    assert scene.peers("a", "PP", now=1.1) == [
        Log(30, f"{CAUSE}: membership epoch 2 with 2 reducers (a:1, b:1)"),
        send("a", Hello(epoch(2), 0)),
        send("b", Hello(epoch(2), 0)),
    ]


def test_a_stream_that_just_ended_is_logged_as_such():
    assert Scene(rank=1).run().lose("a", now=1.0) == [Log(30, "lost the stream to a:1: it ended")]


def test_a_rank_lost_at_a_member_makes_a_new_epoch_once_it_is_back():
    scene = Scene().run()
    assert scene.peers("b", "PL", now=1.0) == [Log(20, "lost the stream of rank 1 to b:1")]
    assert scene.peers("b", "PP", now=1.5)[0] == Log(
        30, f"{CAUSE}: membership epoch 2 with 2 reducers (a:1, b:1)"
    )


def test_events_at_a_reducer_that_is_not_a_member_change_nothing():
    scene = Scene(rank=1)
    scene.meet()
    scene.enter(reducers="a")
    assert scene.peers("b", "PL", now=1.0) == []
    assert scene.peers("b", "PP", draining=True, now=1.0) == [Shut(1)], "it is left at once"
    assert scene.lose("b", now=1.0) == []
    assert scene.core.epochs.broken_since is None


def test_further_losses_do_not_lengthen_the_grace():
    scene = Scene(rank=1).run()
    assert scene.peers("b", "LP", now=1.0) == [], "only rank 0 tells of other ranks' streams"
    scene.lose("a", now=1.9)
    assert scene.core.epochs.broken_since == 1.0


def test_a_missing_reducer_and_its_return_are_logged_as_warnings():
    scene = Scene()
    scene.tick(0.0)
    scene.welcome("a")
    scene.peers("a", "PP")
    scene.lose("b")
    levels = {text: level for now in (1.0, 61.0) for level, text in _logs(scene.tick(now))}
    text = "not all ranks can reach b:1, which will take part once they can: membership epoch 1 with 1 reducer (a:1)"
    assert levels[text] == 30
    scene.start("a", now=65.0)
    scene.tick(66.0)
    scene.welcome("b", now=66.0)
    text = "b:1 is available and takes part from now on: membership epoch 2 with 2 reducers (a:1, b:1)"
    assert _logs(scene.peers("b", "PP", now=66.0)) == [(30, text)]


def _logs(actions):
    return [(action.level, action.text) for action in actions if isinstance(action, Log)]


# ---- reducers that drain ----


def test_a_draining_member_is_left_out_and_its_stream_ended():
    scene = Scene().run()
    assert scene.peers("a", "PP", draining=True, now=1.0) == [
        Log(30, "a:1 is draining and asks its jobs to leave: membership epoch 2 with 1 reducer (b:1)"),
        Shut(0),
        send("b", Hello(epoch(2, "b"), 0)),
    ]
    assert scene.lose("a", now=1.0) == [], "that was its end, and no reason for another epoch"


def test_rank_0_warns_at_once_if_no_reducer_can_take_over():
    """A reducer that drains too, or one that a rank is missing from, cannot take over."""
    alone, both_drain, misses = Scene(reducers="a").run(), Scene().run(), Scene()
    both_drain.peers("b", "PP", draining=True, now=1.0)
    misses.tick(0.0)
    for reducer in "ab":
        misses.welcome(reducer)
    misses.peers("b", "P-")
    for scene in (alone, both_drain, misses):
        ((level, text),) = _logs(scene.peers("a", "PP", draining=True, now=1.0))
        assert level == 30
        assert text.startswith(
            "a:1 is draining and asks its jobs to leave, but no other reducer is available: "
        )
        assert "60 s (join_timeout_s)" in text
    assert alone.peers("a", "PP", draining=True, now=2.0) == [], "that was said"
    assert alone.lose("a", now=2.0) == [Log(20, "lost the stream to a:1: it ended")], "it was expected"


def test_a_reducer_that_drains_at_the_jobs_end_is_ignored():
    scene = Scene(reducers="a").run()
    scene.close()
    assert scene.peers("a", "PP", draining=True, now=1.0) == []
    scene = Scene(reducers="a").run()
    assert scene.peers("a", "PG", draining=True, now=1.0) == [], "rank 1 has left, and with it its reducer"


def test_other_ranks_leave_it_with_rank_0s_configuration():
    scene = Scene(rank=1).run()
    assert scene.peers("a", "PP", draining=True) == []
    assert scene.receive("b", Configure(epoch(2, "b"))) == [Shut(0), send("b", Hello(epoch(2, "b"), 0))]


def test_a_reducer_that_was_left_is_redialed():
    # The drained reducer may return as another process.
    scene = Scene(rank=1).run()
    scene.receive("b", Configure(epoch(2, "b")))
    scene.peers("a", "PP", draining=True, now=1.0)
    assert [type(action) for action in scene.tick(1.0)] == [Open]
    scene.abort("a", ReducerDraining("stopping"), now=1.1)
    scene.lose("a", now=1.1)
    assert [type(action) for action in scene.tick(1.2)] == [Open]


@pytest.mark.parametrize("reducers", ["a", "ab"])
def test_an_epoch_that_has_started_is_not_waited_for(reducers):
    """This holds however long ago it started, when a reducer is lost next."""
    scene = Scene(1, reducers).run()
    actions = scene.lose("a", now=1e6) + scene.tick(1e6 + 0.1)
    assert not any(isinstance(action, Fail) for action in actions)


def test_an_epoch_has_not_started_until_all_reducers_confirm_it():
    scene = Scene(1)
    scene.meet()
    scene.enter()
    scene.start("a", now=1.0)
    kind, text = failure(scene.tick(601.0))
    assert kind is CollectiveTimeout
    assert "did not respond to membership epoch 1 within 600 s (timeout_s)" in text
