"""The decisions of a worker without a generation, by the entries it hears."""

from dataclasses import replace
from itertools import product

import pytest
from reduction.errors import ConfigError, RankTaken, ReducerUnavailable, WorkerLost, WorkersMissing

from worker_plugin.elastic.membership.council import (
    HEARD_S,
    STOPPED_S,
    TAKEN_S,
    Hearing,
    Join,
    Propose,
    Refuse,
    Wait,
    deliberate,
    must_tell,
)
from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker

SETTINGS = "world_size=3, wire_dtype=None"


def worker(rank: int, life: str = "a") -> Worker:
    return Worker(rank, f"{life}{rank}")


def said(rank: int, life: str = "a", **changes: object) -> Said:
    changes.setdefault("generation", {1: "first", 2: "second"}.get(changes.get("number", 0), ""))
    return replace(Said(worker(rank, life), f"host{rank}", SETTINGS), **changes)


def lost(rank: int, number: int = 1) -> Said:
    return said(rank, number=number, is_gone=True)


def waits(rank: int, number: int = 1, **changes: object) -> Said:
    """Return the entry of a member of this generation that is looking for the next one."""
    return said(rank, number=number, is_waiting=True, **changes)


def hearing(own: Said, *others: Said, lineage: Lineage | None = None, **changes: object) -> Hearing:
    lineage = Lineage(own.worker, 3) if lineage is None else lineage
    by_nonce = {one.worker.nonce: one for one in others}
    return replace(Hearing(100.0, own, by_nonce, lineage, 100.0, 60.0, "new", 0.0), **changes)


def check(heard: Hearing, expected: object) -> None:
    """Assert the advice. To wait or to refuse is checked by type and words of its text."""
    advice = deliberate(heard)
    kind, *named = expected if isinstance(expected, tuple) else (expected,)
    if kind is Wait:
        assert isinstance(advice, Wait)
        assert [one for one in named if one not in advice.why] == []
    elif isinstance(kind, type):
        assert isinstance(advice, Refuse)
        assert type(advice.error) is kind
        assert [one for one in named if one not in str(advice.error)] == []
    else:
        assert advice == expected


def generation(number: int, *ranks: int, id: str = "new") -> Generation:
    return Generation(number, id, tuple(map(worker, ranks)))


FIRST = generation(1, 0, 1, 2, id="first")


def after(rank: int, *generations: Generation, first: Generation = FIRST) -> Lineage:
    """Return the lineage of a worker when these generations have started."""
    lineage = Lineage(worker(rank), len(first.workers))
    for one in (first, *generations):
        lineage.join(one)
        lineage.start(one)
    return lineage


# ---- a new job ----


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (hearing(said(0), said(1)), (Wait, "ranks [2] of 3")),
        (hearing(said(0), said(1), said(2, is_gone=True)), (Wait, "ranks [2] of 3")),
        (hearing(said(0), said(1), said(2)), Propose(generation(1, 0, 1, 2))),
        (hearing(said(1), said(0), said(2)), (Wait, "rank 0 to begin")),
        (hearing(said(1), said(0, proposal=FIRST), said(2)), Join(FIRST)),
        (hearing(said(0), said(1), now=160.0), (WorkersMissing, "ranks [2] of 3", "60 s")),
        (hearing(said(1), said(0, settings="world_size=4")), (ConfigError, "world_size=4")),
    ],
)
def test_rank_0_proposes_the_first_generation_when_all_are_present(heard, expected):
    check(heard, expected)


def test_no_job_begins_before_a_reducer_was_heard_for_a_second():
    """Alone it looks like all the ranks of a job that starts with one, and others may already be training."""
    alone, silence = (
        hearing(said(0), lineage=Lineage(worker(0), 1)),
        (Wait, "reducers to report the present workers"),
    )
    for since, expected in (
        (0.0, Propose(generation(1, 0))),
        (100.0 - HEARD_S, Propose(generation(1, 0))),
        (None, silence),
        (100.1 - HEARD_S, silence),
    ):
        check(replace(alone, heard_since=since), expected)
    check(replace(alone, now=159.9, heard_since=None), Wait)
    check(replace(alone, now=160.0, heard_since=None), (ReducerUnavailable, "60 s (join_timeout_s)"))
    check(replace(alone, now=160.0, heard_since=159.9), Wait)


def test_a_duplicate_of_a_rank_is_refused():
    first, second = said(1, "a"), said(1, "b")
    check(hearing(second, said(0), first), Wait)
    late = 100.0 + TAKEN_S
    check(hearing(second, said(0), first, now=late), (RankTaken, "rank 1", "host1"))
    check(hearing(first, said(0), second, now=late), Wait)
    check(hearing(said(0, "b"), said(0, number=3), said(1, number=3), now=late), RankTaken)


def test_only_one_of_several_rank_0_processes_begins_the_job_with_one_of_each_rank():
    firsts, seconds = [said(0, life) for life in "abc"], [said(1, life) for life in "xab"]
    others = [*seconds, said(2)]
    for order in (others, others[::-1]):
        check(hearing(firsts[0], *firsts[1:], *order), Propose(generation(1, 0, 1, 2)))
    for twin in firsts[1:]:
        heard = hearing(twin, *(one for one in firsts if one != twin), *others)
        check(heard, (Wait, "another process with rank 0, on host0"))
        check(replace(heard, now=100.0 + TAKEN_S), RankTaken)


def test_workers_of_two_runs_never_meet_no_matter_who_hears_whom():
    """Two runs of three ranks. For each other worker, it hears nothing, its presence, or a proposal."""
    refusals = 0
    for size in (2, 3):
        everybody = [said(rank, run, settings=f"run={run!r}") for run in "xy" for rank in range(size)]
        for own, others in ((one, [other for other in everybody if other != one]) for one in everybody):
            strangers = [other for other in others if other.settings != own.settings]
            mixed = [one.worker for one in strangers if one.worker.rank != own.worker.rank]
            workers = tuple(sorted((own.worker, *mixed)))
            for choice in product((None, False, True), repeat=len(others)):
                heard = [
                    replace(other, proposal=Generation(1, "p", workers) if proposes else None)
                    for other, proposes in zip(others, choice, strict=True)
                    if proposes is not None and not (proposes and other.settings == own.settings)
                ]
                asked = hearing(own, *heard, lineage=Lineage(own.worker, size))
                if any(other.settings != own.settings for other in heard):
                    check(asked, (ConfigError, "(host"))
                    refusals += 1
                elif isinstance(advice := deliberate(asked), Propose):
                    assert {one.nonce[0] for one in advice.generation.workers} == {own.worker.nonce[0]}
    assert refusals


# ---- a running job ----

WITH_NEWCOMER = Generation(4, "x", (worker(0), worker(1), worker(2, "b")), (worker(2, "b"),))


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (hearing(said(2, "b"), said(0, number=3), said(1, number=3)), Wait),
        # It must receive the training state first.
        (hearing(said(2, "b"), said(0, number=3, proposal=WITH_NEWCOMER), said(1, number=3)), Wait),
        (hearing(said(2, "b"), said(0, number=3), now=1e6), Wait),
        # The settings of the running workers count.
        (hearing(said(2, "b"), said(0, number=3), said(1, "c", settings="something else")), Wait),
        (
            hearing(said(2, "b"), said(0, number=3, refused=("b2",), refusal="a function")),
            (ConfigError, "rank 0 (host0)", "rank 2", "a function"),
        ),
        (hearing(said(2, "c"), said(0, number=3, refused=("b2",), refusal="a function")), Wait),
        # It has begun to receive the training state, and does not start a new job.
        (
            hearing(said(2, "b"), said(0, "b"), said(1, "b", proposal=FIRST), has_taken=True),
            (WorkersMissing, "while rank 2 took their training"),
        ),
        (hearing(said(2, "b"), said(0, number=3), has_taken=True), Wait),
        # The others cannot continue yet.
        (hearing(said(0, "b"), waits(3), waits(1)), (Wait, "ranks [1, 3], which have lost others")),
    ],
)
def test_a_new_worker_waits_to_be_taken_in(heard, expected):
    check(heard, expected)


@pytest.mark.parametrize("has_taken", [False, True])
def test_a_job_that_is_no_longer_heard_is_not_at_once_taken_to_be_gone(has_taken):
    """Restarted reducers know only those workers that have dialled them again."""
    heard = hearing(said(0, "b"), said(1, "b"), said(2, "b"), has_taken=has_taken, silent_since=99.0)
    check(heard, (Wait, "none of which can be heard any more"))
    late = deliberate(replace(heard, now=99.0 + heard.join_timeout_s))
    assert isinstance(late, Refuse if has_taken else Propose)


# ---- after a loss ----

LATE = 100.0 + STOPPED_S
SECOND = generation(2, 0, 1, id="x")


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (hearing(waits(0), waits(1), lost(2), lineage=after(0)), Propose(generation(2, 0, 1))),
        (hearing(waits(1), waits(0), lost(2), lineage=after(1)), (Wait, "rank 0 to propose")),
        (hearing(waits(1), waits(0, proposal=SECOND), lost(2), lineage=after(1)), Join(SECOND)),
        # The first worker may be lost as well.
        (hearing(waits(1), waits(2), lost(0), lineage=after(1)), Propose(generation(2, 1, 2))),
        # New workers do not count.
        (hearing(waits(0), lost(1), waits(2), said(1, "b"), lineage=after(0)), Propose(generation(2, 0, 2))),
        # Nor does a worker without which a generation has started, because it lacks the others' work since.
        (hearing(waits(0, 2), lost(1, 2), waits(2), lineage=after(0, SECOND)), Propose(generation(3, 0))),
        # A worker that has neither left nor noticed is waited for, and then left out by a majority.
        (hearing(waits(0), said(1, number=1), lost(2), lineage=after(0)), Wait),
        (hearing(waits(0), said(1, number=1), lost(2), lineage=after(0), now=LATE), Wait),
        (
            hearing(waits(0), waits(1), said(2, number=1), lineage=after(0), now=LATE),
            Propose(generation(2, 0, 1)),
        ),
        # The others have continued.
        (hearing(waits(1), said(0, number=2), said(2, number=2), lineage=after(1)), Wait),
        (hearing(waits(1), said(0, number=2), said(2, number=2), lineage=after(1), now=LATE), WorkerLost),
    ],
)
def test_the_remaining_workers_continue(heard, expected):
    check(heard, expected)


@pytest.mark.parametrize("number", [2, 3])
def test_the_proposal_with_the_highest_number_is_joined(number):
    high = generation(number, 0, 1, id="z")
    others = said(0, number=1, proposal=SECOND), said(2, number=1, proposal=high)
    check(hearing(waits(1), *others, lineage=after(1)), Join(high))


def test_a_newcomer_that_did_not_get_the_training_is_not_waited_for():
    lineage = after(0)
    lineage.join(Generation(2, "x", (*FIRST.workers, worker(3, "b")), (worker(3, "b"),)))
    others, expected = (waits(1, 2), waits(2, 2)), Propose(generation(3, 0, 1, 2))
    check(hearing(waits(0, 2), *others, said(3, "b"), lineage=lineage), Wait)
    check(hearing(waits(0, 2), *others, said(3, "b", missed="x"), lineage=lineage), expected)
    # This one is the donor.
    check(hearing(waits(0, 2, missed="x"), *others, said(3, "b"), lineage=lineage), expected)


def test_a_newcomer_whose_generation_does_not_start_ends():
    """The others could not let it propose, because it lacks what they do without it."""
    newcomer = worker(0, "b")
    with_it = Generation(3, "x", (newcomer, worker(1), worker(2)), (newcomer,))
    lineage = Lineage(newcomer, 3)
    lineage.inherit(generation(2, 1, 2))
    lineage.join(with_it)
    heard = hearing(waits(0, 3, life="b"), waits(1, 3), waits(2, 3), lineage=lineage)
    check(heard, WorkerLost)
    lineage.start(with_it)
    assert isinstance(deliberate(heard), Propose)


def test_a_minority_waits_and_then_fails():
    heard = hearing(waits(2), lineage=after(2))
    check(replace(heard, now=130.0), Wait)
    named = (
        "60 s (join_timeout_s) for ranks [0, 1]",
        "ranks [2] are left of the 3",
        "proves that it has ended",
    )
    check(replace(heard, now=160.0), (WorkersMissing, *named))


def test_half_of_the_workers_continue_when_another_has_provably_ended():
    lineage = after(1, first=generation(1, 0, 1, 2, 3, id="first"))
    half = waits(1), waits(2), lost(0), lost(3)
    named = "ranks [0, 3]: ranks [1, 2] are left", "restarted on the host where it was killed"
    check(hearing(*half, lineage=lineage), (Wait, *named))
    elsewhere = hearing(*half, said(0, "b"), lineage=lineage)
    check(elsewhere, (Wait, "ranks [0] are back, but on another host"))
    proof = said(0, "b", former=("a0", 1))
    lineage.ended.update(proof.ended)
    check(hearing(*half, proof, lineage=lineage), Propose(generation(2, 1, 2)))
    lineage.ended.update(said(0, "b", former=("a0", 2)).ended)  # it may have continued with worker 3
    check(hearing(*half, proof, lineage=lineage), Wait)


def test_others_in_another_generation_of_the_same_number_have_also_continued():
    lineage = after(1)
    lineage.join(generation(2, 0, 1, 2, id="own"))
    others = said(0, number=2), said(2, number=2)
    check(hearing(waits(1, 2, generation="own"), *others, lineage=lineage, now=LATE), WorkerLost)


@pytest.mark.parametrize(
    ("joined", "others", "expected"),
    [
        (generation(2, 0, 1), (lost(1, 2), waits(2)), generation(3, 0, 2)),
        # Numbers are higher than any that was heard of.
        (generation(5, 0, 1, 2), (waits(1, 7), lost(2)), generation(8, 0, 1)),
    ],
)
def test_joined_generations_that_never_started_count(joined, others, expected):
    lineage = after(0)
    lineage.join(joined)
    check(hearing(waits(0, joined.number), *others, lineage=lineage), Propose(expected))


# ---- which worker announces the members of a generation ----

WITH_3 = Generation(2, "second", (worker(0), worker(1), worker(3)), (worker(3),))


@pytest.mark.parametrize(
    ("told", "own", "others", "expected"),
    [
        # The first of the workers that have joined tells those that are looking for a generation.
        (FIRST, 0, (said(2), said(0), said(1)), True),
        (FIRST, 0, (said(0, number=1), said(1, number=1), said(2)), True),
        (FIRST, 1, (said(0, number=1), said(1, number=1), said(2)), False),
        (FIRST, 1, (lost(0), said(2)), True),
        # No worker announces what all know.
        (FIRST, 0, (said(1, number=1), said(2, number=1)), False),
        (FIRST, 0, (said(1, number=1), said(2, is_gone=True), said(5, is_waiting=True)), False),
        # They have agreed on it. A newcomer is told, and so is a donor that does not know it.
        (WITH_3, 0, (said(1, number=1), said(3)), False),
        (WITH_3, 1, (waits(0), said(3)), True),
        (WITH_3, 3, (waits(0), said(3), said(1, number=2)), False),
    ],
)
def test_one_worker_announces_the_members_of_a_generation(told, own, others, expected):
    assert must_tell(told, worker(own), others) == expected
