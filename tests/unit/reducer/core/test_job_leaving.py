"""One job on one reducer: the results that ranks hold, their presence, and the end of ranks and jobs."""

import pytest
from reduction.errors import PeerLeft, ReductionError, WorkerLost
from reduction.model import Abort, Ack, Goodbye, Minimum, Peer, Peers, Presence, Welcome
from support.scenes.jobs_scene import CREDIT, REDUCER
from unit.reducer.core.scene import (
    DATA,
    Scene,
    discards,
    ends,
    fold,
    nonce,
    publish,
    running,
    seen,
    to_all,
)

from reducer.core.actions import Close, Send
from reducer.core.events import Drain, Ended


def test_the_end_of_a_lost_ranks_process_is_reported_to_rank_0():
    scene = running(3)
    assert scene.jobs.handle(Ended("job", "", 1, nonce(1)), 0.0) == [], "it is there"
    scene.lose(1)
    news = Peers((Peer(1, nonce(1), "h1", Presence.LOST, has_ended=True),), False)
    assert scene.jobs.handle(Ended("job", "", 1, nonce(1)), 0.0) == to_all(news, 0)
    for other in (Ended("job", "", 1, nonce(2)), Ended("job", "", 7, nonce(7)), Ended("?", "", 1, nonce(1))):
        assert scene.jobs.handle(other, 0.0) == []
    scene.join(1, stream=9)  # a rank that lied
    assert scene.job.peers()[1] == Peer(1, nonce(1), "h1", Presence.PRESENT, 2)


# ---- the minimum ----


def test_the_minimum_rises_with_the_slowest_rank_and_is_sent_after_10_ms():
    scene = running(3)
    assert scene.receive(0, Ack(5), now=1.0) == scene.receive(1, Ack(4), now=1.0) == []
    assert scene.tick(2.0) == []
    assert scene.receive(2, Ack(3), now=3.0) == scene.receive(2, Ack(4), now=3.008) == []
    assert scene.tick(3.009) == []
    assert scene.tick(3.01) == to_all(Minimum(4), 0, 1, 2)
    assert scene.tick(9.0) == []


def test_a_result_carries_the_minimum_and_saves_a_message():
    scene = running()
    scene.receive(0, Ack(4), now=1.0)
    scene.push(0, seq=4, held=4, now=1.0)
    assert scene.push(1, seq=4, held=4, now=1.0)[-1] == publish(4, minimum=4)
    assert scene.tick(9.0) == []


def test_held_never_falls_and_still_counts_while_the_rank_is_lost():
    scene = running()
    for rank, held in ((0, 5), (1, 5), (1, 2)):
        scene.receive(rank, Ack(held))
    assert scene.tick(1.0) == to_all(Minimum(5), 0, 1)
    scene.receive(1, Ack(6))
    scene.lose(1)
    scene.receive(0, Ack(7))
    assert scene.tick(2.0) == to_all(Minimum(6), 0)


def test_a_rank_that_never_joined_holds_nothing():
    scene = Scene(3, joined=2)
    scene.receive(0, Ack(5))
    scene.receive(1, Ack(5))
    assert scene.tick(1.0) == []


# ---- presence ----


def test_rank_0_is_notified_of_every_change_and_others_only_of_rank_0_and_departures():
    scene = Scene(4, joined=2)
    assert scene.join(2)[1:] == [*to_all(seen(0, "P"), 2), *to_all(seen(2, "P"), 0)]
    assert scene.lose(1) == to_all(seen(1, "L"), 0)
    assert scene.receive(2, Goodbye(0, 0)) == [Close(2, None), *to_all(seen(2, "G"), 0)]
    assert scene.join(3)[1:] == [*to_all(seen(0, "P", 2, "G"), 3), *to_all(seen(3, "P"), 0)]
    assert scene.lose(0) == to_all(seen(0, "L"), 3)
    zero, one, two, three = seen(0, "P", streams=2).peers + seen(1, "L", 2, "G", 3, "P").peers
    assert scene.join(0)[1:] == [
        *to_all(Peers((zero, one, two, three), False), 0),
        *to_all(Peers((zero,), False), 3),
    ]


def test_before_rank_0_joins_no_peers_are_reported_but_draining_is():
    scene = Scene(2, joined=0)
    assert scene.join(1)[1:] == to_all(seen(), 1)
    assert scene.jobs.handle(Drain(), 0.0) == to_all(seen(draining=True), 1)


def test_a_replaced_stream_shows_in_the_stream_count():
    scene = Scene()
    replaced = [Close(1, None), Send(7, Welcome(REDUCER, CREDIT)), *to_all(seen(0, "P"), 7)]
    assert scene.join(1, stream=7) == [*replaced, *to_all(seen(1, "P", streams=2), 0)]


def test_the_configuration_decides_whether_a_job_needs_this_reducer():
    scene = Scene()
    assert not scene.job.needs_this_reducer
    scene.hello(0)
    assert scene.job.needs_this_reducer


# ---- Goodbye ----


def test_goodbye_ends_the_stream_and_carries_the_ranks_held_and_minimum():
    scene = running(3)
    scene.receive(0, Ack(5))
    scene.receive(2, Ack(5))
    assert scene.receive(1, Goodbye(3, 0), now=1.0) == [Close(1, None), *to_all(seen(1, "G"), 0, 2)]
    assert scene.tick(1.05) == to_all(Minimum(3), 0, 2)
    scene.receive(2, Goodbye(5, 4))
    assert scene.job.minimum == 4


def test_goodbye_while_others_wait_for_this_rank_fails_the_job_and_names_it():
    scene = running(3)
    scene.push(0)
    values = "rank 2 (h2) closed", "rank 0 still issued collective 0"
    assert ends(scene.receive(2, Goodbye(0, 0)), [0, 1, 2], PeerLeft, *values) == discards((0, 0))


def test_a_new_collective_after_a_goodbye_fails_the_job_and_names_who_left():
    scene = running(3)
    scene.receive(1, Goodbye(0, 0))
    values = "rank 1 (h1) closed", "rank 2 still issued collective 0"
    assert ends(scene.push(2), [0, 2], PeerLeft, *values) == discards((0, 0))


def test_goodbye_after_contributing_lets_the_others_finish():
    scene = running()
    scene.push(1)
    scene.receive(1, Goodbye(0, 0))
    assert scene.push(0) == [fold(0, 0, 1), publish(0, streams=(0,))]


def test_a_collective_held_by_all_may_be_pushed_again_after_a_goodbye():
    # An epoch requested it, and no rank waits for the result.
    scene = running()
    scene.receive(0, Ack(1))
    scene.receive(1, Goodbye(1, 1))
    assert scene.push(0, seq=0) == [fold(0, 0)]


def test_a_rank_that_leaves_again_and_again_is_recorded_once():
    scene = running()
    for stream in range(10, 20):
        scene.join(1, stream)
        scene.receive(stream, Goodbye(0, 0))
    assert scene.job.left == [1]


# ---- Abort ----


@pytest.mark.parametrize(
    ("code", "error"), [(WorkerLost.code, WorkerLost), *[(code, ReductionError) for code in (0, 14, 99)]]
)
def test_an_abort_is_relayed_with_its_cause_to_all_ranks_present(code, error):
    """An unknown code of another version is relayed as an internal error."""
    scene = running(4)
    for rank in (0, 3):
        scene.push(rank, payload=DATA[0])
    scene.receive(3, Goodbye(0, 0))
    scene.lose(2)
    assert ends(scene.receive(1, Abort(code, "why")), [0, 1], error, "why") == discards((0, 0))
    assert scene.jobs.streams == {}


def test_received_and_sent_bytes_are_counted():
    scene = running(3)
    for rank in range(3):
        scene.push(rank)
    scene.push(0, seq=1)
    scene.jobs.note_sent(0, 12)  # the engine knows the size of a result
    scene.jobs.note_sent(1, 5)
    scene.jobs.note_sent(99, 12)  # no longer belongs to any job
    assert (scene.job.received_bytes, scene.job.sent_bytes) == (4 * 12, 12 + 5)
