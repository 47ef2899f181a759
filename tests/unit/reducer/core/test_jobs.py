"""All jobs of a reducer: faulty streams, leaving, draining, and jobs that do not see each other."""

import pytest
from reduction.errors import (
    DataCorrupted,
    MalformedFrame,
    OutOfOrder,
    ReducerDraining,
    StaleInstance,
    WorkerLost,
)
from reduction.model import (
    Abort,
    Ack,
    Goodbye,
    Minimum,
    Peers,
    Presence,
    Push,
    Welcome,
)
from support.scenes.jobs_scene import (
    CREDIT,
    NEW,
    OLD,
    PAYLOAD,
    REDUCER,
    SUM3,
    join,
    make_jobs,
    peer,
    receive,
    refused,
    running,
)

from reducer.core.actions import Close, Discard, Fold, Send, SlotKey
from reducer.core.events import Drain, Lost, Rejected, Tick


def push():
    return Push(1, 0, 0, SUM3, 0, PAYLOAD)


# ---- one stream's own faults ----


def test_the_first_frame_must_be_a_join():
    assert receive(make_jobs(), 10, Ack(0)) == refused(
        10, OutOfOrder("the first frame of a stream is a Join, not a Ack")
    )


def test_a_second_join_on_one_stream_ends_the_job():
    jobs = make_jobs()
    running(jobs)
    error = OutOfOrder("rank 1 (host1) sent a second Join on one stream")
    assert receive(jobs, 11, join(1)) == [*refused(10, error), *refused(11, error)]
    assert jobs.by_name == {}


def test_the_error_of_a_close_is_the_one_that_was_sent():
    close = receive(make_jobs(), 10, Ack(0))[1]
    assert type(close.error) is OutOfOrder


def test_bytes_that_are_no_frame_end_a_stream_that_has_not_joined():
    jobs = make_jobs()
    error = MalformedFrame("no frame")
    assert jobs.handle(Rejected(10, error), 0.0) == [Send(10, Abort(7, "no frame")), Close(10, error)]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_ends_a_ranks_stream_for_good_reaches_the_others_as_it_is(rank):
    """Not as a rank that is gone: its worker takes the Abort for final and never comes back."""
    jobs = make_jobs()
    running(jobs)
    error = MalformedFrame("no frame")
    told = MalformedFrame(f"rank {rank} (host{rank}): no frame")
    assert jobs.handle(Rejected(10 + rank, error), 0.0) == [*refused(10, told), *refused(11, told)]
    assert jobs.failures["job", OLD].args == told.args


def test_damage_on_the_way_costs_the_stream_only():
    jobs = make_jobs()
    running(jobs)
    error = DataCorrupted("a bit")
    assert jobs.handle(Rejected(11, error), 0.0) == [
        Send(11, Abort(16, "a bit")),
        Close(11, error),
        Send(10, Peers((peer(1, Presence.LOST),), draining=False)),
    ]


def test_the_end_of_a_stream_that_never_joined_is_no_news():
    assert make_jobs().handle(Lost(10), 0.0) == []


# ---- leaving ----


def test_the_last_loss_frees_the_job_its_name_and_its_memory():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 10, push())
    jobs.handle(Lost(10), 0.0)
    assert jobs.handle(Lost(11), 0.0) == [Discard(SlotKey(1, 0, 0))]
    assert (jobs.by_name, jobs.streams, jobs.memory_reserved_bytes) == ({}, {}, 0)
    assert receive(jobs, 20, join(0, life=1, instance=NEW))[0] == Send(20, Welcome(REDUCER, CREDIT))


def test_the_last_goodbye_frees_the_job_and_its_name():
    jobs = make_jobs()
    running(jobs)
    left = Peers((peer(0, Presence.LEFT),), draining=False)
    assert receive(jobs, 10, Goodbye(0, 0)) == [Close(10, None), Send(11, left)]
    assert receive(jobs, 11, Goodbye(0, 0)) == [Close(11, None)]
    assert (jobs.by_name, jobs.streams) == ({}, {})


def test_the_last_goodbye_frees_accumulators_that_wait_for_a_lost_rank():
    # state.close() with a collective in flight, after the other rank has died.
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 10, push())
    jobs.handle(Lost(11), 0.0)
    assert receive(jobs, 10, Goodbye(0, 0)) == [Close(10, None), Discard(SlotKey(1, 0, 0))]


def test_a_frame_after_goodbye_is_out_of_order():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 10, Goodbye(0, 0))
    assert receive(jobs, 10, Ack(0)) == refused(
        10, OutOfOrder("the first frame of a stream is a Join, not a Ack")
    )


def test_job_numbers_are_never_used_twice():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 10, Abort(WorkerLost.code, "over"))
    running(jobs, instance=NEW)
    assert receive(jobs, 10, push()) == [Fold(SlotKey(2, 0, 0), SUM3, (PAYLOAD,), 12)]


# ---- draining ----


def test_draining_tells_all_ranks_and_takes_no_new_job():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    assert jobs.handle(Drain(), 0.0) == [Send(10, Peers((), draining=True))]
    assert receive(jobs, 20, join(0, job="new")) == refused(
        20, ReducerDraining("this reducer is stopping and takes no new job 'new'")
    )


def test_a_live_job_may_be_joined_while_draining():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    jobs.handle(Drain(), 0.0)
    assert receive(jobs, 11, join(1)) == [
        Send(11, Welcome(REDUCER, CREDIT)),
        Send(11, Peers((peer(0),), draining=True)),
        Send(10, Peers((peer(1),), draining=True)),
    ]


def test_a_new_life_that_is_refused_does_not_make_the_old_one_vanish_in_silence():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 10, push())
    jobs.handle(Lost(10), 0.0)
    jobs.handle(Drain(), 0.0)
    actions = receive(jobs, 20, join(0, life=1, instance=NEW))
    assert actions[-2:] == refused(20, ReducerDraining("this reducer is stopping and takes no new job 'job'"))
    stale = StaleInstance("job 'job' was started again by rank 0 on host0")
    ended = actions[:-2] == [Discard(SlotKey(1, 0, 0)), *refused(11, stale)]
    assert ended or 11 in jobs.streams, f"rank 1 waits for ever: {actions}"


# ---- several jobs ----


def test_jobs_of_equal_shape_share_nothing():
    jobs = make_jobs()
    running(jobs)
    running(jobs, job="other", first_stream=20)
    assert receive(jobs, 10, push()) == [Fold(SlotKey(1, 0, 0), SUM3, (PAYLOAD,), 12)]
    assert receive(jobs, 21, push()) == [], "rank 1 of the other job waits for its own rank 0"
    assert receive(jobs, 11, Abort(WorkerLost.code, "over")) == [
        Discard(SlotKey(1, 0, 0)),
        *refused(10, WorkerLost("over")),
        *refused(11, WorkerLost("over")),
    ]
    assert receive(jobs, 20, push())[0] == Fold(SlotKey(2, 0, 0), SUM3, (PAYLOAD, PAYLOAD), 12)


def test_time_passes_for_every_job():
    jobs = make_jobs()
    running(jobs)
    running(jobs, job="other", first_stream=20)
    for stream in (10, 11, 20, 21):
        receive(jobs, stream, Ack(1), now=1.0)
    assert jobs.handle(Tick(), 1.009) == []
    assert jobs.handle(Tick(), 1.011) == [Send(stream, Minimum(1)) for stream in (10, 11, 20, 21)]
    assert jobs.handle(Tick(), 9.0) == []
