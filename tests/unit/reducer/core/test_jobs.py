"""All jobs of a reducer: faulty streams, leaving, draining, and jobs isolated from each other."""

import pytest
from reduction.errors import DataCorrupted, MalformedFrame, ReducerDraining, StaleInstance, WorkerLost
from reduction.model import Abort, Ack, Goodbye, Minimum, Peers, Presence, Push, Welcome
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
from unit.reducer.core.scene import discards, ends, to_all

from reducer.core.actions import Fold, Send, SlotKey
from reducer.core.events import Drain, Lost, Received, Rejected, Tick

PUSH = Push(1, 0, 0, SUM3, 0, PAYLOAD)


@pytest.fixture
def jobs():
    """A running job of two ranks on streams 10 and 11."""
    jobs = make_jobs()
    running(jobs)
    return jobs


# ---- one stream's own faults ----


def test_malformed_frames_end_a_stream_that_has_not_joined():
    error = MalformedFrame("no frame")
    assert make_jobs().handle(Rejected(10, error), 0.0) == refused(10, error)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fatal_stream_error_reaches_the_other_ranks_unchanged(jobs, rank):
    """It must not look like a lost rank, because its worker treats the Abort as final and never returns."""
    told = f"rank {rank} (host{rank}): no frame"
    actions = jobs.handle(Rejected(10 + rank, MalformedFrame("no frame")), 0.0)
    assert ends(actions, [10, 11], MalformedFrame, told) == []
    assert jobs.failures["job", OLD].args == (told,)


def test_damage_in_transit_costs_only_the_stream(jobs):
    lost = Peers((peer(1, Presence.LOST),), draining=False)
    actions = jobs.handle(Rejected(11, DataCorrupted("a bit")), 0.0)
    assert ends(actions, [11], DataCorrupted, "a bit") == [Send(10, lost)]


# ---- leaving ----


@pytest.mark.parametrize("last", [Lost(10), Received(10, Goodbye(0, 0))])
def test_the_last_one_to_go_frees_the_jobs_name_its_memory_and_its_accumulators(jobs, last):
    """This includes state.close() with a collective in flight, after the other rank has died."""
    receive(jobs, 10, PUSH)
    jobs.handle(Lost(11), 0.0)
    assert jobs.handle(last, 0.0)[-1:] == discards((0, 0))
    assert (jobs.by_name, jobs.streams, jobs.memory_reserved_bytes) == ({}, {}, 0)
    assert receive(jobs, 20, join(0, life=1, instance=NEW))[0] == Send(20, Welcome(REDUCER, CREDIT))


def test_job_numbers_are_never_used_twice(jobs):
    receive(jobs, 10, Abort(WorkerLost.code, "over"))
    running(jobs, instance=NEW)
    assert receive(jobs, 10, PUSH) == [Fold(SlotKey(2, 0, 0), SUM3, (PAYLOAD,), 12)]


# ---- draining ----


def test_draining_is_announced_to_all_and_live_jobs_may_still_be_joined_but_no_new_ones():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    assert jobs.handle(Drain(), 0.0) == [Send(10, Peers((), draining=True))]
    assert receive(jobs, 11, join(1)) == [
        Send(11, Welcome(REDUCER, CREDIT)),
        Send(11, Peers((peer(0),), draining=True)),
        Send(10, Peers((peer(1),), draining=True)),
    ]
    assert ends(receive(jobs, 20, join(0, job="new")), [20], ReducerDraining, "'new'") == []


def test_a_refused_new_life_does_not_end_the_old_one_silently(jobs):
    receive(jobs, 10, PUSH)
    jobs.handle(Lost(10), 0.0)
    jobs.handle(Drain(), 0.0)
    actions = receive(jobs, 20, join(0, life=1, instance=NEW))
    assert ends(actions[-2:], [20], ReducerDraining, "'job'") == []
    ended = actions[:-2] and ends(actions[:-2], [11], StaleInstance, "host0") == discards((0, 0))
    assert ended or 11 in jobs.streams, f"rank 1 waits for ever: {actions}"


def test_time_passes_for_every_job(jobs):
    running(jobs, job="other", first_stream=20)
    streams = 10, 11, 20, 21
    for stream in streams:
        receive(jobs, stream, Ack(1), now=1.0)
    assert jobs.handle(Tick(), 1.009) == []
    assert jobs.handle(Tick(), 1.011) == to_all(Minimum(1), *streams)
    assert jobs.handle(Tick(), 9.0) == []
