"""One job on one reducer: what ranks hold, who is there, and how ranks and jobs end."""

from unittest.mock import ANY

import pytest
from reduction.errors import PeerLeft, ReductionError, WorkerLost
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Minimum,
    Peer,
    Peers,
    Presence,
    Push,
    ReduceOp,
    Welcome,
)

from reducer.core.actions import Close, Discard, Fold, Publish, Send, SlotKey
from reducer.core.events import Drain, Ended, Lost, Received, Tick
from reducer.core.jobs import Jobs

R = b"reducer-reducer-"
CREDIT = 4096
CONFIGURATION = Configuration(b"instance-instanc", 1, 1024, (Member("a:1", R),))
SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
DATA = memoryview(b"0123456789ab")


def nonce(rank):
    return bytes([rank]) * 16


def seen(*marks, streams=1, draining=False):
    """Return the news of some ranks: 1, "P" for rank 1 present; L is lost, G gone after Goodbye."""
    meaning = {"P": Presence.PRESENT, "L": Presence.LOST, "G": Presence.LEFT}
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return Peers(
        tuple(Peer(rank, nonce(rank), f"h{rank}", meaning[mark], streams) for rank, mark in pairs), draining
    )


class Scene:
    """A reducer with one running job; rank r is on stream r."""

    def __init__(self, world_size=2, joined=None, hello=True):
        self.jobs = Jobs(incarnation=R, memory_limit_bytes=1 << 30)
        self.world_size = world_size
        for rank in range(world_size if joined is None else joined):
            self.join(rank)
        for rank in range(world_size if hello else 0):
            self.receive(rank, Hello(CONFIGURATION, 0))

    def join(self, rank, stream=None):
        join = Join("job", CONFIGURATION.instance, rank, self.world_size, nonce(rank), f"h{rank}", 0, CREDIT)
        return self.receive(rank if stream is None else stream, join)

    def receive(self, rank, frame, now=0.0):
        return self.jobs.handle(Received(rank, frame), now)

    def push(self, rank, seq=0, held=0, now=0.0):
        return self.receive(rank, Push(1, seq, 0, SUM, held, DATA), now)

    def lose(self, rank):
        return self.jobs.handle(Lost(rank), 0.0)

    def tick(self, now):
        return self.jobs.handle(Tick(), now)

    @property
    def job(self):
        return self.jobs.by_name["job", ""]


def aborted(error, *ranks):
    """Return what these ranks hear when the job fails."""
    return [
        action for rank in ranks for action in (Send(rank, Abort(error.code, str(error))), Close(rank, ANY))
    ]


def to_all(frame, *ranks):
    return [Send(rank, frame) for rank in ranks]


# ---- a process that has ended ----


def test_whose_process_has_ended_is_told_to_those_who_decide():
    scene = Scene(3)
    assert scene.jobs.handle(Ended("job", "", 1, nonce(1)), 0.0) == [], "it is there"
    scene.lose(1)
    news = Peers((Peer(1, nonce(1), "h1", Presence.LOST, has_ended=True),), False)
    assert scene.jobs.handle(Ended("job", "", 1, nonce(1)), 0.0) == to_all(news, 0)
    for other in (Ended("job", "", 1, nonce(2)), Ended("job", "", 7, nonce(7)), Ended("?", "", 1, nonce(1))):
        assert scene.jobs.handle(other, 0.0) == []
    scene.join(1, stream=9)  # somebody who lied
    assert scene.job.peers()[1] == Peer(1, nonce(1), "h1", Presence.PRESENT, 2)


# ---- the minimum ----


def test_the_minimum_rises_with_the_slowest_rank_and_is_told_after_10_ms():
    scene = Scene(3)
    assert scene.receive(0, Ack(5), now=1.0) == []
    assert scene.receive(1, Ack(4), now=1.0) == []
    assert scene.tick(2.0) == []
    assert scene.receive(2, Ack(3), now=3.0) == []
    assert scene.receive(2, Ack(4), now=3.008) == []
    assert scene.tick(3.009) == []
    assert scene.tick(3.01) == to_all(Minimum(4), 0, 1, 2)
    assert scene.tick(9.0) == []


def test_a_result_carries_the_minimum_and_spares_the_message():
    scene = Scene()
    scene.receive(0, Ack(4), now=1.0)
    scene.push(0, seq=4, held=4, now=1.0)
    actions = scene.push(1, seq=4, held=4, now=1.0)
    assert actions[-1] == Publish(SlotKey(1, 4, 0), SUM, 2, 1, 4, (0, 1))
    assert scene.tick(9.0) == []


def test_what_a_rank_holds_never_falls():
    scene = Scene()
    scene.receive(0, Ack(5))
    scene.receive(1, Ack(5))
    scene.receive(1, Ack(2))
    assert scene.tick(1.0) == to_all(Minimum(5), 0, 1)
    scene.receive(0, Ack(6))
    assert scene.tick(2.0) == []


def test_a_rank_that_never_came_holds_nothing():
    scene = Scene(3, joined=2, hello=False)
    scene.receive(0, Ack(5))
    scene.receive(1, Ack(5))
    assert scene.tick(1.0) == []


def test_a_lost_rank_still_counts_with_what_it_held():
    scene = Scene()
    scene.receive(1, Ack(2))
    scene.lose(1)
    scene.receive(0, Ack(7))
    assert scene.tick(1.0) == to_all(Minimum(2), 0)


# ---- who is there ----


def test_rank_0_hears_of_every_change_the_others_only_of_rank_0():
    scene = Scene(3, joined=2, hello=False)
    assert scene.join(2)[1:] == [*to_all(seen(0, "P"), 2), *to_all(seen(2, "P"), 0)]
    assert scene.lose(1) == to_all(seen(1, "L"), 0)
    assert scene.lose(0) == to_all(seen(0, "L"), 2)


def test_rank_0_hears_of_everybody_when_it_comes():
    scene = Scene(3, hello=False)
    scene.lose(1)
    scene.lose(0)
    everybody = Peers(
        tuple(
            Peer(rank, nonce(rank), f"h{rank}", presence, streams)
            for rank, presence, streams in (
                (0, Presence.PRESENT, 2),
                (1, Presence.LOST, 1),
                (2, Presence.PRESENT, 1),
            )
        ),
        False,
    )
    assert scene.join(0)[1:] == [*to_all(everybody, 0), *to_all(seen(0, "P", streams=2), 2)]


def test_before_rank_0_has_come_there_is_nobody_to_hear_of():
    scene = Scene(2, joined=0, hello=False)
    assert scene.join(1)[1:] == to_all(seen(), 1)


def test_who_comes_after_somebody_left_hears_of_it():
    scene = Scene(3, joined=2, hello=False)
    scene.receive(1, Goodbye(0, 0))
    assert scene.join(2)[1:] == [*to_all(seen(0, "P", 1, "G"), 2), *to_all(seen(2, "P"), 0)]


def test_a_stream_that_replaces_another_shows_by_the_count():
    scene = Scene(2, hello=False)
    assert scene.join(1, stream=7)[:3] == [
        Close(1, None),
        Send(7, Welcome(R, CREDIT)),
        *to_all(seen(0, "P"), 7),
    ]
    assert scene.job.peers()[1].streams == 2


def test_draining_is_told_to_all_even_when_rank_0_never_came():
    scene = Scene(2, joined=0, hello=False)
    scene.join(1)
    assert scene.jobs.handle(Drain(), 0.0) == to_all(seen(draining=True), 1)


def test_whether_a_job_needs_this_reducer_is_what_its_configuration_says():
    scene = Scene(hello=False)
    assert not scene.job.needs_this_reducer
    scene.receive(0, Hello(CONFIGURATION, 0))
    assert scene.job.needs_this_reducer


# ---- Goodbye ----


def test_goodbye_ends_the_stream_and_all_others_hear_it():
    scene = Scene(3)
    assert scene.receive(1, Goodbye(0, 0)) == [Close(1, None), *to_all(seen(1, "G"), 0, 2)]


def test_goodbye_brings_the_last_acknowledgement():
    scene = Scene()
    scene.receive(0, Ack(3))
    scene.receive(1, Goodbye(3, 0), now=1.0)
    assert scene.tick(1.05) == to_all(Minimum(3), 0)


def test_goodbye_brings_what_the_rank_knows_of_the_minimum():
    scene = Scene(3)
    scene.receive(1, Goodbye(4, 4))
    assert scene.job.minimum == 4


def test_goodbye_while_others_wait_for_this_rank_fails_the_job_and_names_it():
    scene = Scene(3)
    scene.push(0)
    error = PeerLeft("rank 2 (h2) closed, but rank 0 still issued collective 0: see rank 2's log")
    actions = scene.receive(2, Goodbye(0, 0))
    assert [action for action in actions if action != Close(2, None)] == [
        Discard(SlotKey(1, 0, 0)),
        *aborted(error, 0, 1, 2),
    ]


def test_goodbye_ends_the_leavers_stream_even_when_the_job_fails_over_it():
    scene = Scene(3)
    scene.push(0)
    closed = [action.stream for action in scene.receive(2, Goodbye(0, 0)) if isinstance(action, Close)]
    assert sorted(closed) == [0, 1, 2]


def test_goodbye_after_contributing_lets_the_others_finish():
    scene = Scene()
    scene.push(1)
    assert scene.receive(1, Goodbye(0, 0)) == [Close(1, None), *to_all(seen(1, "G"), 0)]
    assert scene.push(0) == [
        Fold(SlotKey(1, 0, 0), SUM, (DATA, DATA), 12),
        Publish(SlotKey(1, 0, 0), SUM, 2, 1, 0, (0,)),
    ]


def test_a_new_collective_after_a_goodbye_fails_the_job_and_names_who_left():
    scene = Scene(3)
    scene.receive(1, Goodbye(0, 0))
    error = PeerLeft("rank 1 (h1) closed, but rank 2 still issued collective 0: see rank 1's log")
    assert scene.push(2) == [Discard(SlotKey(1, 0, 0)), *aborted(error, 0, 2)]


def test_what_everybody_holds_may_be_pushed_again_after_a_goodbye():
    # An epoch asked for it, and no rank waits for the result.
    scene = Scene()
    scene.receive(0, Ack(1))
    scene.receive(1, Goodbye(1, 1))
    assert scene.push(0, seq=0) == [Fold(SlotKey(1, 0, 0), SUM, (DATA,), 12)]


# ---- Abort ----


def test_an_abort_is_relayed_to_all_ranks_with_its_cause():
    scene = Scene(3)
    scene.push(0)
    error = WorkerLost("rank 1 (h1): rank 2 is gone")
    assert scene.receive(1, Abort(error.code, str(error))) == [
        Discard(SlotKey(1, 0, 0)),
        *aborted(error, 0, 1, 2),
    ]
    assert scene.jobs.streams == {}


@pytest.mark.parametrize("code", [0, 14, 99])
def test_an_abort_with_a_code_of_another_version_is_relayed_as_internal(code):
    scene = Scene()
    assert scene.receive(1, Abort(code, "why")) == aborted(ReductionError("why"), 0, 1)


def test_a_rank_that_comes_and_goes_leaves_no_trail():
    scene = Scene()
    for stream in range(10, 20):
        assert scene.receive(1 if stream == 10 else stream - 1, Goodbye(0, 0))
        scene.join(1, stream)
    assert scene.job.left == [1]


def test_ranks_that_are_lost_or_have_left_are_not_told():
    scene = Scene(4)
    scene.lose(1)
    scene.receive(2, Goodbye(0, 0))
    assert scene.receive(3, Abort(14, "why")) == aborted(ReductionError("why"), 0, 3)


def test_counters_count_what_was_taken_and_what_was_sent():
    scene = Scene(3)
    for rank in range(3):
        scene.push(rank)
    scene.push(0, seq=1)
    scene.jobs.note_sent(0, 12)  # the engine knows the size of a result
    scene.jobs.note_sent(1, 5)
    scene.jobs.note_sent(99, 12)  # nobody's any more
    assert (scene.job.received_bytes, scene.job.sent_bytes) == (4 * 12, 12 + 5)


def test_a_rank_that_leaves_again_and_again_is_noted_once():
    scene = Scene()
    for stream in range(10, 20):
        scene.join(1, stream)
        scene.receive(stream, Goodbye(0, 0))
    assert scene.job.left == [1]
