"""Who may join a reducer: every row of the table in `reducer.core.jobs`, as events in and actions out."""

import traceback

import pytest
from reduction.errors import (
    CollectiveMismatch,
    JobBusy,
    RankTaken,
    ResourceExhausted,
    StaleInstance,
    UnsupportedVersion,
    WorkerLost,
)
from reduction.limits import (
    CREDIT_BYTES_ASKED,
    CREDIT_BYTES_LEAST,
    CREDIT_BYTES_USUAL,
    FAILURES_MAX,
    JOB_FIXED_BYTES,
    STREAMS_MAX,
)
from reduction.model import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Configuration,
    Configure,
    DType,
    Hello,
    Member,
    NamedReducers,
    Peers,
    Presence,
    Welcome,
)
from support.scenes.jobs_scene import (
    CREDIT,
    NEW,
    OLD,
    REDUCER,
    join,
    make_jobs,
    peer,
    receive,
    refused,
    running,
)

from reducer.core.actions import Close, Send
from reducer.core.events import Lost
from reducer.core.jobs import grant, reservation


def sees(stream, *peers):
    """Return what tells a stream how the reducer sees some ranks."""
    return Send(stream, Peers(peers, draining=False))


# ---- the first Join ----


def test_no_such_job_makes_one_and_reserves_its_memory():
    jobs = make_jobs()
    assert receive(jobs, 10, join(0)) == [
        Send(10, Welcome(REDUCER, CREDIT)),
        sees(10, peer(0)),
    ]
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT) == 2 * 2 * CREDIT + JOB_FIXED_BYTES


def test_the_first_join_decides_the_credit():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    assert receive(jobs, 11, join(1, credit_bytes=2 * CREDIT)) == [
        Send(11, Welcome(REDUCER, CREDIT)),
        sees(11, peer(0)),
        sees(10, peer(1)),
    ]
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


def test_another_rank_may_come_first_and_without_the_instance():
    jobs = make_jobs()
    receive(jobs, 11, join(1, instance=b""))
    assert receive(jobs, 10, join(0)) == [
        Send(10, Welcome(REDUCER, CREDIT)),
        sees(10, peer(0), peer(1)),
        sees(11, peer(0)),
    ]


def test_a_wire_dtype_of_another_version_is_refused_with_what_is_known():
    assert isinstance(receive(make_jobs(), 10, join(0, wire_dtype=DType.TOPK))[0].frame, Welcome)
    abort = receive(make_jobs(), 10, join(0, wire_dtype=13))[0].frame
    assert abort.code == UnsupportedVersion.code
    assert "rank 0 wants wire dtype 13, this reducer knows 1 FLOAT32, " in abort.message
    assert "12 TOPK; install the same version" in abort.message


def test_another_protocol_version_is_refused():
    error = UnsupportedVersion(
        f"rank 0 speaks protocol version {PROTOCOL_VERSION + 1}, this reducer {PROTOCOL_VERSION}"
    )
    assert receive(make_jobs(), 10, join(0, protocol=PROTOCOL_VERSION + 1)) == refused(10, error)


def test_no_memory_for_one_more_job_names_the_numbers_and_leaves_the_others():
    jobs = make_jobs(memory_limit_bytes=2 * reservation(2, CREDIT) + 5)
    receive(jobs, 10, join(0))
    error = ResourceExhausted(
        "job 'more' needs 1064960 bytes (2 ranks x 2 x 4096 credit + 1048576); 1064960 of 2129925 are taken, and it "
        "may have 798723 more (a job with its groups, like a token with its jobs, gets 3/4 of what others leave): "
        "raise --memory-limit, or wait for other jobs to end"
    )
    assert receive(jobs, 20, join(0, job="more")) == refused(20, error)
    assert set(jobs.by_name) == {("job", "")}
    jobs.handle(Lost(10), 0.0)
    assert receive(jobs, 30, join(0, job="more"))[0] == Send(30, Welcome(REDUCER, CREDIT))


def test_a_large_credit_leaves_half_of_the_memory_to_later_jobs():
    free = reservation(4, 40 << 20)
    assert grant(CREDIT_BYTES_ASKED, 4, 2 * free) == CREDIT_BYTES_ASKED
    assert reservation(4, grant(CREDIT_BYTES_ASKED, 4, free)) <= free // 2
    assert grant(CREDIT_BYTES_ASKED, 4, free) > CREDIT_BYTES_USUAL


def test_the_usual_credit_may_take_the_last_of_the_memory_and_less_is_better_than_none():
    assert grant(CREDIT_BYTES_ASKED, 4, reservation(4, CREDIT_BYTES_USUAL)) == CREDIT_BYTES_USUAL
    assert grant(CREDIT_BYTES_ASKED, 4, reservation(4, 3 << 20)) == 3 << 20
    assert grant(CREDIT_BYTES_ASKED, 4, reservation(4, CREDIT_BYTES_LEAST)) == CREDIT_BYTES_LEAST
    assert grant(CREDIT_BYTES_ASKED, 4, reservation(4, CREDIT_BYTES_LEAST) - 1) == 0


def test_who_asks_for_little_gets_it_or_nothing():
    assert grant(4096, 4, reservation(4, 4096)) == 4096
    assert grant(4096, 4, reservation(4, 4096) - 1) == 0
    assert grant(4096, 4, -(1 << 30)) == 0


def test_a_job_gets_less_credit_where_memory_is_short():
    jobs = make_jobs(memory_limit_bytes=-(-4 * reservation(2, CREDIT_BYTES_USUAL) // 3))
    welcome = receive(jobs, 10, join(0, credit_bytes=CREDIT_BYTES_ASKED))[0]
    assert welcome == Send(10, Welcome(REDUCER, CREDIT_BYTES_USUAL))
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT_BYTES_USUAL)


@pytest.mark.parametrize("world_size", [1, 8, 512])
def test_the_groups_of_a_job_leave_some_memory_to_other_jobs(world_size):
    jobs = make_jobs(memory_limit_bytes=2 << 30)
    for number in range(40):
        group = f"group {number}"
        receive(
            jobs,
            number,
            join(0, world_size=world_size, group=group, credit_bytes=1 << 30, job=f"job@{number}"),
        )
    assert jobs.memory_reserved_bytes <= 3 << 29
    assert receive(jobs, 100, join(0, job="other", credit_bytes=32 << 20))[0] == Send(
        100, Welcome(REDUCER, 32 << 20)
    )


def test_the_jobs_of_a_token_leave_some_memory_to_those_of_others():
    jobs = make_jobs(memory_limit_bytes=2 << 30)
    for number in range(40):
        receive(jobs, number, join(0, job=f"job {number}", admitted_by="*", credit_bytes=1 << 30))
    assert jobs.memory_reserved_bytes <= 3 << 29
    assert isinstance(receive(jobs, 100, join(0, job="other", admitted_by="other"))[0].frame, Welcome)


def test_the_groups_of_a_job_leave_some_streams_to_other_jobs():
    jobs = make_jobs(memory_limit_bytes=1 << 50)
    for number, world_size in enumerate((4096, 2048)):
        receive(jobs, number, join(0, world_size=world_size, group=f"group {number}"))
    assert jobs.seats.taken == STREAMS_MAX * 3 // 4
    abort = receive(jobs, 10, join(0, world_size=1, group="one more"))[0].frame
    assert abort.code == ResourceExhausted.code
    assert f"6144 of {STREAMS_MAX} are promised to ranks, and it may have 0 more" in abort.message
    assert isinstance(receive(jobs, 20, join(0, world_size=1536, job="other"))[0].frame, Welcome)
    again = receive(jobs, 30, join(0, life=1, instance=NEW, world_size=4096, group="group 0"))
    assert isinstance(again[0].frame, Abort)
    jobs.handle(Lost(0), 0.0)
    jobs.handle(Lost(1), 0.0)
    jobs.handle(Lost(20), 0.0)
    assert (jobs.seats.taken, jobs.memory.taken) == (0, 0)


def test_a_job_that_starts_over_may_have_what_it_had():
    limit = 2 * reservation(2, CREDIT_BYTES_USUAL)
    jobs = make_jobs(memory_limit_bytes=limit)
    receive(jobs, 10, join(0, credit_bytes=CREDIT_BYTES_USUAL))
    jobs.handle(Lost(10), 0.0)
    welcome = receive(jobs, 20, join(0, life=1, instance=NEW, credit_bytes=CREDIT_BYTES_USUAL))[-1]
    assert isinstance(welcome, Send)
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT_BYTES_USUAL)


def test_ranks_hear_of_the_end_of_a_job_whose_next_life_finds_no_room():
    """It had more than its share of what others have left since."""
    jobs = make_jobs(memory_limit_bytes=1 << 50)
    for number, world_size in enumerate((4096, 2048)):
        receive(jobs, number, join(0, world_size=world_size, group=f"group {number}"))
    receive(jobs, 2, join(1, world_size=4096, group="group 0"))
    receive(jobs, 3, join(0, world_size=1536, job="other"))
    jobs.handle(Lost(0), 0.0)
    actions = receive(jobs, 4, join(0, life=1, instance=NEW, world_size=4096, group="group 0"))
    aborts = {action.stream: action.frame.code for action in actions if isinstance(action, Send)}
    assert aborts == {2: StaleInstance.code, 4: ResourceExhausted.code}
    assert {action.stream for action in actions if isinstance(action, Close)} == {2, 4}


# ---- the same job again ----


def test_the_same_process_reconnects_and_rank_0_hears_that_there_is_another_stream():
    jobs = make_jobs()
    configuration = running(jobs)
    assert receive(jobs, 21, join(1)) == [
        Close(11, None),
        Send(21, Welcome(REDUCER, CREDIT)),
        sees(21, peer(0)),
        sees(10, peer(1, streams=2)),
        Send(21, Configure(configuration)),
    ]
    assert jobs.handle(Lost(11), 0.0) == [], "the old stream's end is no news"
    assert receive(jobs, 21, Ack(0)) == []


def test_rank_0_reconnects_and_everybody_hears_it_but_it_needs_no_configuration():
    jobs = make_jobs()
    running(jobs)
    assert jobs.handle(Lost(10), 0.0) == [sees(11, peer(0, Presence.LOST))]
    assert receive(jobs, 20, join(0)) == [
        Send(20, Welcome(REDUCER, CREDIT)),
        sees(20, peer(0, streams=2), peer(1)),
        sees(11, peer(0, streams=2)),
    ]


def test_a_reconnect_takes_what_the_rank_knows_of_the_minimum_and_nothing_else():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 20, join(0, minimum=7, instance=NEW))
    assert jobs.by_name["job", ""].minimum == 7
    assert jobs.by_name["job", ""].instance == OLD
    receive(jobs, 21, join(1, minimum=3))
    assert jobs.by_name["job", ""].minimum == 7


def test_a_second_live_rank_0_is_busy():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    error = JobBusy(
        "job 'job' is live: its rank 0 runs on host0; choose another job name or wait for its end"
    )
    assert receive(jobs, 20, join(0, life=1, instance=NEW)) == refused(20, error)
    assert receive(jobs, 10, Ack(0)) == [], "the live job goes on"


def test_rank_0_of_a_new_life_ends_the_old_one():
    jobs = make_jobs()
    running(jobs)
    jobs.handle(Lost(10), 0.0)
    assert receive(jobs, 20, join(0, life=1, instance=NEW)) == [
        *refused(11, StaleInstance("job 'job' was started again by rank 0 on host0")),
        Send(20, Welcome(REDUCER, CREDIT)),
        sees(20, peer(0, life=1)),
    ]
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


def test_rank_0_may_come_to_ranks_that_do_not_know_the_instance_yet():
    jobs = make_jobs()
    receive(jobs, 11, join(1, instance=b""))
    assert receive(jobs, 10, join(0, life=1, instance=NEW))[0] == Send(10, Welcome(REDUCER, CREDIT))
    assert set(jobs.streams) == {10, 11}


def test_rank_0_of_a_new_life_comes_to_ranks_that_know_the_old_instance():
    jobs = make_jobs()  # of a new reducer: only rank 1 has come back to it so far
    receive(jobs, 11, join(1))
    error = StaleInstance("job 'job' was started again by rank 0 on host0")
    assert receive(jobs, 20, join(0, life=1, instance=NEW))[:2] == refused(11, error)


def test_a_rank_that_is_taken():
    jobs = make_jobs()
    receive(jobs, 11, join(1))
    error = RankTaken(
        "rank 1 of job 'job' is already taken by a live process on host1; elsewhere wants it too: "
        "give each job a name of its own, or stop the other process"
    )
    assert receive(jobs, 21, join(1, life=1, host="elsewhere")) == refused(21, error)


def test_a_rank_of_another_life_is_stale():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    error = StaleInstance("rank 1 of job 'job' on host1 belongs to an earlier or later life of the job")
    assert receive(jobs, 11, join(1, instance=NEW)) == refused(11, error)


def test_a_new_process_of_a_lost_rank_must_wait_while_rank_0_lives():
    jobs = make_jobs()
    running(jobs)
    jobs.handle(Lost(11), 0.0)
    error = JobBusy("job 'job' is live, and rank 1 of job 'job' was another process, on host1")
    assert receive(jobs, 21, join(1, life=1, instance=b"")) == refused(21, error)


def test_a_new_process_of_a_lost_rank_starts_over_once_rank_0_is_gone():
    jobs = make_jobs()
    for rank in range(3):
        receive(jobs, 10 + rank, join(rank, world_size=3))
    jobs.handle(Lost(10), 0.0)
    jobs.handle(Lost(11), 0.0)
    assert receive(jobs, 21, join(1, life=1, instance=b"", world_size=3)) == [
        *refused(12, StaleInstance("job 'job' was started again by rank 1 on host1")),
        Send(21, Welcome(REDUCER, CREDIT)),
        sees(21),
    ]


def test_a_new_process_of_a_lost_rank_attaches_while_rank_0_never_came():
    jobs = make_jobs()
    for rank in (1, 2):
        receive(jobs, 10 + rank, join(rank, world_size=3, instance=b""))
    jobs.handle(Lost(11), 0.0)
    assert receive(jobs, 21, join(1, life=1, world_size=3, instance=b"")) == [
        Send(21, Welcome(REDUCER, CREDIT)),
        sees(21),
    ]


def test_another_world_size_fails_all_ranks_while_the_job_is_forming():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    error = CollectiveMismatch("rank 1 (host1) has world size 3, other ranks of job 'job' have 2")
    assert receive(jobs, 11, join(1, world_size=3)) == [*refused(10, error), *refused(11, error)]
    assert jobs.by_name == {}


def test_another_world_size_is_busy_once_the_job_has_an_epoch():
    jobs = make_jobs()
    running(jobs)
    error = JobBusy(
        "job 'job' is live with world size 2: rank 2 (host2) has world size 3, other ranks of job 'job' have 2"
    )
    assert receive(jobs, 12, join(2, world_size=3)) == refused(12, error)
    assert set(jobs.by_name) == {("job", "")}


def test_another_local_size_fails_all_ranks_while_the_job_is_forming():
    jobs = make_jobs()
    receive(jobs, 10, join(0, local_size=4))
    error = CollectiveMismatch("rank 1 (host1) has local size 2, other ranks of job 'job' have 4")
    assert receive(jobs, 11, join(1, local_size=2)) == [*refused(10, error), *refused(11, error)]
    assert jobs.by_name == {}


def test_another_local_size_is_busy_once_the_job_has_an_epoch():
    jobs = make_jobs()
    running(jobs)
    mismatch = "rank 1 (host1) has local size 2, other ranks of job 'job' have 1"
    error = JobBusy(f"job 'job' is live with local size 1: {mismatch}")
    assert receive(jobs, 12, join(1, local_size=2)) == refused(12, error)


def test_a_rank_that_was_away_hears_why_its_job_failed():
    jobs = make_jobs()
    running(jobs)
    jobs.handle(Lost(11), 0.0)
    receive(jobs, 10, Abort(WorkerLost.code, "rank 1 is gone"))
    assert receive(jobs, 21, join(1)) == refused(21, WorkerLost("rank 1 is gone"))
    assert receive(jobs, 22, join(1, instance=NEW))[0] == Send(22, Welcome(REDUCER, CREDIT))


def test_only_the_latest_failures_are_remembered():
    jobs = make_jobs()
    for life in range(FAILURES_MAX + 1):
        receive(jobs, life, join(0, instance=life.to_bytes(16, "big")))
        receive(jobs, life, Abort(WorkerLost.code, f"life {life}"))
    assert len(jobs.failures) == FAILURES_MAX
    second = join(1, instance=(1).to_bytes(16, "big"))
    assert receive(jobs, 500, second) == refused(500, WorkerLost("life 1"))
    assert receive(jobs, 501, join(1, instance=bytes(16)))[0] == Send(501, Welcome(REDUCER, CREDIT))


def test_a_remembered_failure_does_not_grow_with_every_rank_that_hears_it():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    receive(jobs, 10, Abort(WorkerLost.code, "over"))
    for stream in range(20, 30):
        assert receive(jobs, stream, join(1)) == refused(stream, WorkerLost("over"))
    (error,) = jobs.failures.values()
    assert len(traceback.extract_tb(error.__traceback__)) <= 2, "each hearing keeps its frames alive"


def test_a_failure_without_an_instance_is_not_remembered():
    jobs = make_jobs()
    receive(jobs, 11, join(1, instance=b""))
    receive(jobs, 11, Abort(WorkerLost.code, "no rank 0"))
    assert receive(jobs, 21, join(1, instance=b""))[0] == Send(21, Welcome(REDUCER, CREDIT))


def test_groups_of_one_name_are_jobs_of_their_own():
    jobs = make_jobs()
    receive(jobs, 10, join(0, group="0,1"))
    receive(jobs, 11, join(0, instance=NEW, group="2,3", world_size=3))
    receive(jobs, 12, join(0))
    assert set(jobs.by_name) == {("job", "0,1"), ("job", "2,3"), ("job", "")}
    assert [job.title for job in jobs.by_name.values()] == ["job [ranks 0,1]", "job [ranks 2,3]", "job"]
    busy = JobBusy(
        "job 'job [ranks 0,1]' is live: its rank 0 runs on host0; choose another job name or wait for its end"
    )
    assert receive(jobs, 13, join(0, life=1, group="0,1")) == refused(13, busy)


def test_the_groups_of_a_job_end_by_themselves():
    jobs = make_jobs()
    receive(jobs, 10, join(0, group="0,1"))
    receive(jobs, 11, join(0, group="2,3"))
    jobs.handle(Lost(10), 1.0)
    assert set(jobs.by_name) == {("job", "2,3")}
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


# ---- which run it is ----


def two_runs(one, other):
    return (
        f"{one} and {other} belong to different runs; choose another job name, or wait for the end of the other run; "
        f"ranks without a process group need the same run="
    )


def test_a_rank_of_another_run_does_not_come_to_rank_0():
    jobs = make_jobs()
    receive(jobs, 10, join(0, run="x"))
    for rank, size in ((0, 2), (1, 2), (1, 3)):
        error = JobBusy(f"job 'job' is live: {two_runs('rank 0 on host0', f'rank {rank} on y')}")
        stranger = join(rank, life=1, instance=NEW if rank == 0 else b"", run="y", host="y", world_size=size)
        assert receive(jobs, 20, stranger) == refused(20, error)
    assert receive(jobs, 11, join(1, instance=b"", run="x"))[0] == Send(11, Welcome(REDUCER, CREDIT))


def test_a_rank_of_another_run_does_not_come_to_those_who_wait_for_rank_0():
    jobs = make_jobs()
    receive(jobs, 12, join(2, instance=b"", run="x", world_size=3))
    receive(jobs, 11, join(1, instance=b"", run="x", world_size=3))
    jobs.handle(Lost(11), 0.0)
    error = JobBusy(f"job 'job' is live: {two_runs('rank 2 on host2', 'rank 1 on host1')}")
    assert receive(jobs, 21, join(1, life=1, instance=b"", run="y", world_size=3)) == refused(21, error)


def test_rank_0_of_another_run_takes_the_name_from_those_who_wait_for_theirs():
    jobs = make_jobs()
    receive(jobs, 11, join(1, instance=b"", run="x"))
    error = JobBusy(f"job 'job' is taken: {two_runs('rank 1 on host1', 'rank 0 on y')}")
    assert receive(jobs, 20, join(0, instance=NEW, run="y", host="y"))[:2] == refused(11, error)
    assert set(jobs.streams) == {20}


def test_another_run_begins_when_rank_0_and_the_former_process_of_the_rank_are_gone():
    jobs = make_jobs()
    for rank in range(3):
        receive(jobs, 10 + rank, join(rank, run="x", world_size=3))
    jobs.handle(Lost(10), 0.0)
    again = join(1, life=1, instance=b"", run="y", world_size=3)
    error = JobBusy(f"job 'job' is live: {two_runs('rank 1 on host1', 'rank 1 on host1')}")
    assert receive(jobs, 21, again) == refused(21, error)
    jobs.handle(Lost(11), 0.0)
    stale = StaleInstance("job 'job' was started again by rank 1 on host1")
    assert receive(jobs, 22, again)[:2] == refused(12, stale)


# ---- which reducers were named ----

ONE, TWO = NamedReducers("a:1", 1), NamedReducers("a:1, b:1", 2)


def test_ranks_that_were_told_of_other_reducers_all_fail():
    jobs = make_jobs()
    receive(jobs, 10, join(0, named=TWO))
    error = CollectiveMismatch(
        "rank 1 (host1) was told of the reducers a:1, rank 0 (host0) of a:1, b:1: give all ranks of job 'job' the "
        "same, and a DNS name that grows a ?count=K"
    )
    assert receive(jobs, 11, join(1, named=ONE)) == refused(10, error) + refused(11, error)
    assert not jobs.by_name


def test_ranks_may_have_other_addresses_for_the_same_reducers():
    for named in (TWO, NamedReducers("relay:1, relay:2", 2), None):
        jobs = make_jobs()
        receive(jobs, 11, join(1, instance=b"", named=named))
        assert receive(jobs, 10, join(0, named=TWO))[0] == Send(10, Welcome(REDUCER, CREDIT))


def test_a_rank_of_an_earlier_life_may_have_been_told_otherwise():
    jobs = make_jobs()
    receive(jobs, 12, join(2, named=ONE, world_size=3))
    receive(jobs, 11, join(1, instance=b"", named=ONE, world_size=3))
    jobs.handle(Lost(12), 0.0)
    again = join(2, life=1, instance=b"", named=TWO, world_size=3)
    assert receive(jobs, 13, again)[0] == Send(13, Welcome(REDUCER, CREDIT))
    # It is this list that counts now, and rank 1 is asked when it comes again.
    assert isinstance(receive(jobs, 10, join(0, named=ONE, world_size=3))[0].frame, Abort)


def test_once_an_epoch_has_begun_lists_are_not_compared():
    jobs = make_jobs()
    for rank in (0, 1):
        receive(jobs, 10 + rank, join(rank, named=TWO))
    configuration = Configuration(OLD, 1, 1024, (Member("a:1", REDUCER),))
    receive(jobs, 10, Hello(configuration, 0))
    assert receive(jobs, 21, join(1, named=ONE))[1] == Send(21, Welcome(REDUCER, CREDIT))
