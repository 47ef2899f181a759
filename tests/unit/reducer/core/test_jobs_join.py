"""Admission to a reducer: every row of the table in `reducer.core.jobs`, as events in and actions out."""

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
from support.scenes.jobs_scene import CREDIT, NEW, OLD, REDUCER, join, make_jobs, peer, receive, running
from unit.reducer.core.scene import ends

from reducer.core.actions import Close, Send
from reducer.core.events import Lost
from reducer.core.reservations import grant, reservation

ONE, TWO = NamedReducers("a:1", 1), NamedReducers("a:1, b:1", 2)


def sees(stream, *peers):
    """Return the frame that tells a stream how the reducer sees some ranks."""
    return Send(stream, Peers(peers, draining=False))


def welcome(stream, credit_bytes=CREDIT):
    return Send(stream, Welcome(REDUCER, credit_bytes))


def forming(*joins, lost=()):
    """Return a table of jobs that these ranks have joined, rank r on stream 10 + r; some have been lost again."""
    jobs = make_jobs()
    for one in joins:
        receive(jobs, 10 + one.rank, one)
    for rank in lost:
        jobs.handle(Lost(10 + rank), 0.0)
    return jobs


def live(lost=()):
    """Return a table with a running job of two ranks, some of which have been lost."""
    jobs = make_jobs()
    running(jobs)
    for rank in lost:
        jobs.handle(Lost(10 + rank), 0.0)
    return jobs


# ---- the first Join ----


def test_joining_an_unknown_job_creates_it_and_reserves_memory():
    jobs = make_jobs()
    assert receive(jobs, 10, join(0)) == [welcome(10), sees(10, peer(0))]
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT) == 2 * 2 * CREDIT + JOB_FIXED_BYTES
    assert receive(jobs, 11, join(1, credit_bytes=2 * CREDIT)) == [
        welcome(11),
        sees(11, peer(0)),
        sees(10, peer(1)),
    ], "the first Join decides the credit"
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


def test_another_rank_may_join_first_and_without_the_instance():
    jobs = forming(join(1, instance=b""))
    assert receive(jobs, 10, join(0)) == [welcome(10), sees(10, peer(0), peer(1)), sees(11, peer(0))]


def test_a_lack_of_memory_for_a_new_job_is_explained_and_spares_the_others():
    jobs = make_jobs(memory_limit_bytes=2 * reservation(2, CREDIT) + 5)
    receive(jobs, 10, join(0))
    values = (
        "'more'",
        1064960,
        "2 ranks x 2 x 4096",
        "1064960 of 2129925",
        "798723 more",
        "3/4",
        "--memory-limit",
    )
    assert ends(receive(jobs, 20, join(0, job="more")), [20], ResourceExhausted, *values) == []
    assert set(jobs.by_name) == {("job", "")}
    jobs.handle(Lost(10), 0.0)
    assert receive(jobs, 30, join(0, job="more"))[0] == welcome(30)


FREE = reservation(4, 40 << 20)


@pytest.mark.parametrize(
    ("asked", "free", "granted"),
    [
        (CREDIT_BYTES_ASKED, 2 * FREE, CREDIT_BYTES_ASKED),
        # The usual credit may take the last of the memory, and less is better than none.
        (CREDIT_BYTES_ASKED, reservation(4, CREDIT_BYTES_USUAL), CREDIT_BYTES_USUAL),
        (CREDIT_BYTES_ASKED, reservation(4, 3 << 20), 3 << 20),
        (CREDIT_BYTES_ASKED, reservation(4, CREDIT_BYTES_LEAST), CREDIT_BYTES_LEAST),
        (CREDIT_BYTES_ASKED, reservation(4, CREDIT_BYTES_LEAST) - 1, 0),
        # A rank that asks for little gets that or nothing.
        (4096, reservation(4, 4096), 4096),
        (4096, reservation(4, 4096) - 1, 0),
        (4096, -(1 << 30), 0),
    ],
)
def test_the_credit_of_a_new_job(asked, free, granted):
    assert grant(asked, 4, free) == granted


def test_a_large_credit_leaves_half_of_the_memory_to_later_jobs():
    assert grant(CREDIT_BYTES_ASKED, 4, FREE) > CREDIT_BYTES_USUAL
    assert reservation(4, grant(CREDIT_BYTES_ASKED, 4, FREE)) <= FREE // 2


def test_a_job_gets_less_credit_where_memory_is_short():
    jobs = make_jobs(memory_limit_bytes=-(-4 * reservation(2, CREDIT_BYTES_USUAL) // 3))
    assert receive(jobs, 10, join(0, credit_bytes=CREDIT_BYTES_ASKED))[0] == welcome(10, CREDIT_BYTES_USUAL)
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT_BYTES_USUAL)


@pytest.mark.parametrize("world_size", [1, 8, 512])
def test_the_groups_of_a_job_leave_some_memory_to_other_jobs(world_size):
    jobs = make_jobs(memory_limit_bytes=2 << 30)
    for number in range(40):
        group = {"group": f"group {number}", "job": f"job@{number}"}
        receive(jobs, number, join(0, world_size=world_size, credit_bytes=1 << 30, **group))
    assert jobs.memory_reserved_bytes <= 3 << 29
    assert receive(jobs, 100, join(0, job="other", credit_bytes=32 << 20))[0] == welcome(100, 32 << 20)


def test_the_jobs_of_a_token_leave_some_memory_to_those_of_others():
    jobs = make_jobs(memory_limit_bytes=2 << 30)
    for number in range(40):
        receive(jobs, number, join(0, job=f"job {number}", admitted_by="*", credit_bytes=1 << 30))
    assert jobs.memory_reserved_bytes <= 3 << 29
    assert isinstance(receive(jobs, 100, join(0, job="other", admitted_by="other"))[0].frame, Welcome)


@pytest.fixture
def crowded():
    """A table in which a job's groups have three quarters of all streams; rank 0 of each has joined."""
    jobs = make_jobs(memory_limit_bytes=1 << 50)
    for number, world_size in enumerate((4096, 2048)):
        receive(jobs, number, join(0, world_size=world_size, group=f"group {number}"))
    assert jobs.seats.taken == STREAMS_MAX * 3 // 4
    return jobs


def test_the_groups_of_a_job_leave_some_streams_to_other_jobs(crowded):
    actions = receive(crowded, 10, join(0, world_size=1, group="one more"))
    assert ends(actions, [10], ResourceExhausted, f"6144 of {STREAMS_MAX}", "may have 0 more") == []
    assert isinstance(receive(crowded, 20, join(0, world_size=1536, job="other"))[0].frame, Welcome)
    again = receive(crowded, 30, join(0, life=1, instance=NEW, world_size=4096, group="group 0"))
    assert ends(again, [30], JobBusy) == []
    for stream in (0, 1, 20):
        crowded.handle(Lost(stream), 0.0)
    assert (crowded.seats.taken, crowded.memory.taken) == (0, 0)


def test_ranks_learn_of_the_end_of_a_job_whose_next_life_finds_no_room(crowded):
    """The job held more than its share of the space that is left now that others have joined."""
    receive(crowded, 2, join(1, world_size=4096, group="group 0"))
    receive(crowded, 3, join(0, world_size=1536, job="other"))
    crowded.handle(Lost(0), 0.0)
    actions = receive(crowded, 4, join(0, life=1, instance=NEW, world_size=4096, group="group 0"))
    assert ends(actions[:2], [2], StaleInstance) == ends(actions[2:], [4], ResourceExhausted) == []


def test_a_job_that_starts_over_may_have_what_it_had():
    jobs = make_jobs(memory_limit_bytes=2 * reservation(2, CREDIT_BYTES_USUAL))
    for rank in (0, 1):
        receive(jobs, 10 + rank, join(rank, credit_bytes=CREDIT_BYTES_USUAL))
    jobs.handle(Lost(10), 0.0)
    actions = receive(jobs, 20, join(0, life=1, instance=NEW, credit_bytes=CREDIT_BYTES_USUAL))
    assert ends(actions, [11], StaleInstance)[0] == welcome(20, CREDIT_BYTES_USUAL)
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT_BYTES_USUAL)


# ---- which Joins are refused, and which refusals end the others' streams ----


REFUSED = [
    (forming(), join(0, wire_dtype=13), UnsupportedVersion, ["rank 0", "13", "1 FLOAT32", "12 TOPK"]),
    (
        forming(),
        join(0, protocol=PROTOCOL_VERSION + 1),
        UnsupportedVersion,
        [f"version {PROTOCOL_VERSION + 1}, but this reducer {PROTOCOL_VERSION}"],
    ),
    (
        forming(join(0)),
        join(0, life=1, instance=NEW),
        JobBusy,
        ["job 'job' is live: its rank 0 runs on host0"],
    ),
    (
        forming(join(1)),
        join(1, life=1, host="elsewhere"),
        RankTaken,
        ["rank 1 of job 'job'", "process on host1", "elsewhere claims it"],
    ),
    (
        live(lost=[1]),
        join(1, life=1, instance=b""),
        JobBusy,
        ["rank 1 of job 'job' was a different process, on host1"],
    ),
    (
        live(),
        join(2, world_size=3),
        JobBusy,
        ["live with world size 2: rank 2 (host2) has world size 3, but other ranks of job 'job' have 2"],
    ),
    (
        live(),
        join(1, local_size=2),
        JobBusy,
        ["live with local size 1: rank 1 (host1) has local size 2, but other ranks of job 'job' have 1"],
    ),
]


@pytest.mark.parametrize(("jobs", "who", "error", "values"), REFUSED)
def test_a_refused_join_disturbs_no_job(jobs, who, error, values):
    before = dict(jobs.streams), jobs.memory_reserved_bytes
    assert ends(receive(jobs, 20, who), [20], error, *values) == []
    assert (jobs.streams, jobs.memory_reserved_bytes) == before


def test_a_rank_of_another_life_is_stale():
    actions = receive(forming(join(0)), 11, join(1, instance=NEW))
    assert ends(actions, [11], StaleInstance, "rank 1 of job 'job' on host1") == []


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ({}, {"world_size": 3}, ["rank 1 (host1) has world size 3, but other ranks of job 'job' have 2"]),
        (
            {"local_size": 4},
            {"local_size": 2},
            ["rank 1 (host1) has local size 2, but other ranks of job 'job' have 4"],
        ),
        (
            {"named": TWO},
            {"named": ONE},
            ["rank 1 (host1) was given the reducers a:1, but rank 0 (host0) a:1, b:1", "?count=K"],
        ),
    ],
)
def test_contradicting_a_job_that_is_forming_fails_all_ranks(first, second, values):
    jobs = forming(join(0, **first))
    assert ends(receive(jobs, 11, join(1, **second)), [10, 11], CollectiveMismatch, *values) == []
    assert jobs.by_name == {}


def test_a_known_wire_dtype_is_accepted():
    assert receive(make_jobs(), 10, join(0, wire_dtype=DType.TOPK))[0] == welcome(10)


# ---- the same job again ----


def test_the_same_process_reconnects_and_rank_0_is_notified_of_the_new_stream():
    jobs = make_jobs()
    configuration = running(jobs)
    assert receive(jobs, 21, join(1)) == [
        Close(11, None),
        welcome(21),
        sees(21, peer(0)),
        sees(10, peer(1, streams=2)),
        Send(21, Configure(configuration)),
    ]
    assert jobs.handle(Lost(11), 0.0) == [], "the old stream's end is no news"
    assert receive(jobs, 21, Ack(0)) == []


def test_rank_0_reconnects_without_a_configuration_and_all_are_notified():
    jobs = live()
    assert jobs.handle(Lost(10), 0.0) == [sees(11, peer(0, Presence.LOST))]
    assert receive(jobs, 20, join(0)) == [
        welcome(20),
        sees(20, peer(0, streams=2), peer(1)),
        sees(11, peer(0, streams=2)),
    ]


def test_a_reconnect_takes_only_the_minimum_from_the_rank():
    jobs = live()
    receive(jobs, 20, join(0, minimum=7, instance=NEW))
    receive(jobs, 21, join(1, minimum=3))
    job = jobs.by_name["job", ""]
    assert (job.minimum, job.instance) == (7, OLD)


def test_rank_0_of_a_new_life_ends_the_old_one():
    jobs = live(lost=[0])
    actions = receive(jobs, 20, join(0, life=1, instance=NEW))
    assert ends(actions, [11], StaleInstance, "'job' was restarted by rank 0 on host0") == [
        welcome(20),
        sees(20, peer(0, life=1)),
    ]
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


def test_rank_0_may_join_ranks_without_an_instance_and_ends_those_of_an_old_one():
    jobs = forming(join(1, instance=b"", world_size=3), join(2, world_size=3))  # the reducer is new
    actions = receive(jobs, 20, join(0, life=1, instance=NEW, world_size=3))
    assert ends(actions, [12], StaleInstance, "'job' was restarted by rank 0 on host0")[0] == welcome(20)
    assert set(jobs.streams) == {11, 20}


def test_a_new_process_of_a_lost_rank_starts_over_once_rank_0_is_gone():
    jobs = forming(*[join(rank, world_size=3) for rank in range(3)], lost=(0, 1))
    actions = receive(jobs, 21, join(1, life=1, instance=b"", world_size=3))
    assert ends(actions, [12], StaleInstance, "'job' was restarted by rank 1 on host1") == [
        welcome(21),
        sees(21),
    ]


def test_a_new_process_of_a_lost_rank_attaches_if_rank_0_never_joined():
    jobs = forming(*[join(rank, world_size=3, instance=b"") for rank in (1, 2)], lost=[1])
    assert receive(jobs, 21, join(1, life=1, world_size=3, instance=b"")) == [welcome(21), sees(21)]


# ---- remembered failures ----


def test_any_number_of_absent_ranks_learn_why_their_job_failed():
    jobs = live(lost=[1])
    receive(jobs, 10, Abort(WorkerLost.code, "rank 1 is gone"))
    for stream in range(20, 30):
        assert ends(receive(jobs, stream, join(1)), [stream], WorkerLost, "rank 1 is gone") == []
    (error,) = jobs.failures.values()
    assert len(traceback.extract_tb(error.__traceback__)) <= 2, "each hearing keeps its frames alive"
    assert receive(jobs, 30, join(1, instance=NEW))[0] == welcome(30)


def test_only_the_latest_failures_are_remembered():
    jobs = make_jobs()
    for life in range(FAILURES_MAX + 1):
        receive(jobs, life, join(0, instance=life.to_bytes(16, "big")))
        receive(jobs, life, Abort(WorkerLost.code, f"life {life}"))
    assert len(jobs.failures) == FAILURES_MAX
    second = join(1, instance=(1).to_bytes(16, "big"))
    assert ends(receive(jobs, 500, second), [500], WorkerLost, "life 1") == []
    assert receive(jobs, 501, join(1, instance=bytes(16)))[0] == welcome(501)


def test_a_failure_without_an_instance_is_not_remembered():
    jobs = forming(join(1, instance=b""))
    receive(jobs, 11, Abort(WorkerLost.code, "no rank 0"))
    assert receive(jobs, 21, join(1, instance=b""))[0] == welcome(21)


# ---- groups ----


def test_groups_of_one_job_name_are_separate_jobs():
    jobs = make_jobs()
    receive(jobs, 10, join(0, group="0,1"))
    receive(jobs, 11, join(0, instance=NEW, group="2,3", world_size=3))
    receive(jobs, 12, join(0))
    assert [job.title for job in jobs.by_name.values()] == ["job [ranks 0,1]", "job [ranks 2,3]", "job"]
    actions = receive(jobs, 13, join(0, life=1, group="0,1"))
    assert ends(actions, [13], JobBusy, "job 'job [ranks 0,1]' is live", "host0") == []
    for stream in (11, 12):
        jobs.handle(Lost(stream), 1.0)
    assert set(jobs.by_name) == {("job", "0,1")}
    assert jobs.memory_reserved_bytes == reservation(2, CREDIT)


# ---- identifying the run ----


def test_a_rank_of_another_run_cannot_join_rank_0():
    jobs = forming(join(0, run="x"))
    for rank, size in ((0, 2), (1, 2), (1, 3)):
        stranger = join(rank, life=1, instance=NEW if rank == 0 else b"", run="y", host="y", world_size=size)
        values = "job 'job' is live", f"rank 0 on host0 and rank {rank} on y", "different runs"
        assert ends(receive(jobs, 20, stranger), [20], JobBusy, *values) == []
    assert receive(jobs, 11, join(1, instance=b"", run="x"))[0] == welcome(11)


def test_a_rank_of_another_run_cannot_join_ranks_waiting_for_rank_0():
    jobs = forming(*[join(rank, instance=b"", run="x", world_size=3) for rank in (2, 1)], lost=[1])
    actions = receive(jobs, 21, join(1, life=1, instance=b"", run="y", world_size=3))
    values = "job 'job' is live", "rank 2 on host2 and rank 1 on host1", "different runs"
    assert ends(actions, [21], JobBusy, *values) == []


def test_rank_0_of_another_run_takes_the_name_from_ranks_waiting_for_theirs():
    jobs = forming(join(1, instance=b"", run="x"))
    actions = receive(jobs, 20, join(0, instance=NEW, run="y", host="y"))
    values = "job 'job' is taken", "rank 1 on host1 and rank 0 on y", "different runs"
    assert ends(actions, [11], JobBusy, *values)[0] == welcome(20)
    assert set(jobs.streams) == {20}


def test_another_run_begins_once_rank_0_and_the_ranks_previous_process_are_gone():
    jobs = forming(*[join(rank, run="x", world_size=3) for rank in range(3)], lost=[0])
    again = join(1, life=1, instance=b"", run="y", world_size=3)
    assert ends(receive(jobs, 21, again), [21], JobBusy, "rank 1 on host1 and rank 1 on host1") == []
    jobs.handle(Lost(11), 0.0)
    actions = receive(jobs, 22, again)
    assert ends(actions, [12], StaleInstance, "'job' was restarted by rank 1 on host1")[0] == welcome(22)


# ---- which reducers were named ----


@pytest.mark.parametrize("named", [TWO, NamedReducers("relay:1, relay:2", 2), None])
def test_ranks_may_have_other_addresses_for_the_same_reducers(named):
    jobs = forming(join(1, instance=b"", named=named))
    assert receive(jobs, 10, join(0, named=TWO))[0] == welcome(10)


def test_a_rank_of_an_earlier_life_may_have_had_a_different_list():
    jobs = forming(join(2, named=ONE, world_size=3), join(1, instance=b"", named=ONE, world_size=3), lost=[2])
    again = join(2, life=1, instance=b"", named=TWO, world_size=3)
    assert receive(jobs, 13, again)[0] == welcome(13)
    # This list is the valid one now, and rank 1 is asked when it returns.
    actions = receive(jobs, 10, join(0, named=ONE, world_size=3))
    assert ends(actions, [13, 11, 10], CollectiveMismatch, "a:1, b:1") == []


def test_once_an_epoch_has_begun_lists_are_not_compared():
    jobs = forming(*[join(rank, named=TWO) for rank in (0, 1)])
    receive(jobs, 10, Hello(Configuration(OLD, 1, 1024, (Member("a:1", REDUCER),)), 0))
    assert receive(jobs, 21, join(1, named=ONE))[1] == welcome(21)
