"""Closing a communicator after success waits until no one needs this rank; otherwise it does not wait. A communicator
that no one can use any more closes automatically, once everything issued is done.
"""

import pytest
from reduction.errors import ClosedError, LocalProtocolError, PeerLeft, WorkerLost
from reduction.model import Ack, Goodbye, Hello, Minimum
from support.scenes.rank_scene import Scene, epoch, failure, push, send

from worker_plugin.core.actions import Closed, Deliver, Release
from worker_plugin.core.events import Broke

BROKEN = LocalProtocolError("the disk is on fire")


def goodbyes(held, minimum, reducers="ab"):
    return [send(reducer, Goodbye(held, minimum)) for reducer in reducers]


def with_result(scene, seq=0, now=0.0):
    """Issue one collective and deliver its result."""
    scene.issue(now=now)
    scene.result("ab"[seq % 2], seq, now=now)
    return scene


# ---- close, after success ----


def test_close_before_the_first_collective():
    assert Scene().close() == [Closed()]
    assert Scene().run().close() == [*goodbyes(0, 0), Closed()]


def test_close_acknowledges_and_waits_until_everybody_holds_everything():
    scene = with_result(Scene().run())
    assert scene.close() == [send("a", Ack(1)), send("b", Ack(1))]
    assert scene.tick(1.0) == []
    assert scene.receive("a", Minimum(1)) == [Release(0), *goodbyes(1, 1), Closed()]


@pytest.mark.parametrize("carrier", ["start", "result", "the result that leaving waits for"])
def test_close_is_done_when_another_frame_carries_the_minimum(carrier):
    scene = Scene(rank=1).run()
    if carrier.startswith("the"):
        scene.issue()
        scene.leave(1)
    else:
        with_result(scene).close()
    scene.enter(2)
    if carrier == "start":
        actions = scene.start("a", 2, minimum=1)
    else:
        for reducer in "ab":
            scene.start(reducer, 2)
        actions = scene.result("a", 0, epoch=2, minimum=1)
    assert actions[-3:] == [*goodbyes(1, 1), Closed()]
    assert (Release(0) in actions) == (carrier != "start")


def test_close_does_not_wait_for_ranks_once_one_has_left():
    scene = with_result(Scene().run())
    scene.close()
    assert scene.peers("b", "PG") == [*goodbyes(1, 0), Closed()]
    scene = with_result(Scene().run())
    scene.peers("b", "PG")
    assert scene.close() == [send("a", Ack(1)), send("b", Ack(1)), *goodbyes(1, 0), Closed()]


def test_close_waits_no_longer_than_its_timeout():
    scene = with_result(Scene(close_timeout_s=2.0).run())
    scene.close(now=10.0)
    assert scene.tick(11.9) == []
    assert scene.tick(12.0) == [*goodbyes(1, 0), Closed()]


def test_closing_again_or_leaving_after_close_does_nothing():
    scene = with_result(Scene().run())
    scene.close(now=0.0)
    assert scene.close(now=4.0) == scene.leave(1, now=4.0) == []
    assert scene.tick(5.0)[-1] == Closed()
    assert scene.close(now=6.0) == scene.leave(1, now=6.0) == []


def test_goodbye_only_goes_to_streams_that_are_up():
    scene = with_result(Scene().run())
    scene.lose("a", now=1.0)
    scene.close(now=1.0)
    assert scene.tick(6.0)[-2:] == [*goodbyes(1, 0, "b"), Closed()]


@pytest.mark.parametrize("rank", [0, 1])
def test_others_may_still_start_an_epoch_while_this_rank_closes(rank):
    scene = with_result(Scene(rank).run())
    scene.close()
    if rank == 0:
        scene.peers("b", "PL", now=0.5)
    actions = scene.enter(2) if rank else scene.peers("b", "PP", now=0.6)[1:]
    assert actions == [send("a", Hello(epoch(2), 1)), send("b", Hello(epoch(2), 1))]
    assert scene.start("a", 2) == [push("a", 0, number=2, held=1, is_awaited=False)]


def test_while_it_waits_a_lost_rank_is_not_a_failure():
    scene = with_result(Scene().run())
    scene.close(now=0.0)
    for reducer in "ab":
        scene.peers(reducer, "PL", now=0.5)
    assert scene.tick(4.9) == []
    assert scene.tick(5.0) == [*goodbyes(1, 0), Closed()]


@pytest.mark.parametrize("is_own", [False, True])
def test_while_it_waits_an_error_only_ends_the_waiting(is_own):
    scene = with_result(Scene().run())
    scene.close()
    if is_own:
        assert scene.handle(Broke(BROKEN)) == [*goodbyes(1, 0), Closed()]
    else:
        assert scene.abort("a", PeerLeft("others")) == [Closed()]
    assert scene.core.error is None


# ---- close, with collectives in flight ----


@pytest.mark.parametrize("has_left", [False, True])
def test_close_fails_collectives_in_flight_and_does_not_wait(has_left):
    """It does not even wait as long as leaving would have."""
    scene = with_result(Scene().run())
    scene.issue()
    scene.issue()
    if has_left:
        scene.leave(3)
    actions = scene.close()
    assert failure(actions) == (ClosedError, "closed with 2 collectives in flight")
    assert actions[1:] == [*goodbyes(1, 0), Closed()]


# ---- leaving, because no one can issue any more ----


def test_leaving_with_nothing_in_flight_equals_closing():
    assert Scene().leave(0) == [Closed()]
    assert Scene().run().leave(0) == [*goodbyes(0, 0), Closed()]
    scene = with_result(Scene(close_timeout_s=2.0).run())
    assert scene.leave(1, now=10.0) == [send("a", Ack(1)), send("b", Ack(1))]
    assert scene.tick(11.9) == []
    assert scene.receive("a", Minimum(1), now=11.9) == [Release(0), *goodbyes(1, 1), Closed()]


def test_collectives_issued_or_still_being_copied_finish_before_a_rank_leaves():
    scene = Scene().run()
    scene.issue()
    assert scene.leave(2) == []
    assert Deliver(0) in scene.result("a", 0)
    assert scene.issue() == [push("b", 1, held=1)]
    actions = scene.result("b", 1, now=1.0)
    assert actions[-3:] == [Deliver(1), send("a", Ack(2)), send("b", Ack(2))]
    assert scene.receive("a", Minimum(2)) == [Release(0), Release(1), *goodbyes(2, 2), Closed()]
    assert scene.core.error is None


def test_a_rank_that_leaves_before_meeting_others_finishes_first():
    scene = Scene()
    scene.issue()
    assert scene.leave(1) == []
    scene.run()
    assert Deliver(0) in scene.result("a", 0)
    assert scene.receive("a", Minimum(1))[-1] == Closed()


def test_an_error_ends_a_leaving_rank_like_any_other():
    scene = Scene().run()
    scene.issue()
    scene.leave(1)
    assert failure(scene.abort("a", WorkerLost("rank 1")))[0] is WorkerLost
    assert isinstance(scene.core.error, WorkerLost)


# ---- after the end ----


def test_nothing_happens_after_the_end():
    scene = Scene().run()
    scene.close()
    assert scene.issue() == scene.tick(9.0) == scene.peers("a", "PL") == scene.lose("a") == []


@pytest.mark.parametrize(
    "ending",
    [
        lambda scene: scene.tick(5.0),
        lambda scene: scene.peers("a", "PG"),
        lambda scene: scene.abort("a", WorkerLost("rank 1")),
    ],
    ids=["time", "a peer left", "an error"],
)
def test_a_collective_that_arrives_after_close_is_still_answered(ending):
    # Its copy was still in flight when close() was called, so it arrives here after Close.
    scene = with_result(Scene().run())
    scene.close()
    actions = scene.issue() + ending(scene)
    assert failure(actions)[0] in (ClosedError, WorkerLost, PeerLeft)
    assert actions[-1] == Closed()
