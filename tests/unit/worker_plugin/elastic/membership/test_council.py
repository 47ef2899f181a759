"""What a worker without a generation does, by what it hears."""

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


def hearing(own: Said, *others: Said, lineage: Lineage | None = None, now: float = 100.0) -> Hearing:
    lineage = Lineage(own.worker, 3) if lineage is None else lineage
    by_nonce = {one.worker.nonce: one for one in others}
    return Hearing(now, own, by_nonce, lineage, 100.0, 60.0, "new", 0.0)


FIRST = Generation(1, "first", (worker(0), worker(1), worker(2)))


def after_first(rank: int) -> Lineage:
    lineage = Lineage(worker(rank), 3)
    lineage.join(FIRST)
    lineage.start(FIRST)
    return lineage


# ---- a new job ----


def test_rank_0_proposes_the_first_generation_when_all_are_there():
    assert deliberate(hearing(said(0), said(1))) == Wait("ranks [2] of 3")
    assert deliberate(hearing(said(0), said(1), said(2))) == Propose(replace(FIRST, id="new"))
    assert deliberate(hearing(said(1), said(0), said(2))) == Wait("rank 0 to begin")
    assert deliberate(hearing(said(1), said(0, proposal=FIRST), said(2))) == Join(FIRST)


def test_who_has_heard_no_reducer_for_a_second_begins_no_job():
    """Alone it is all of the ranks that a job of one begins with, and others may train already."""
    alone = hearing(said(0), lineage=Lineage(worker(0), 1))
    assert deliberate(alone) == Propose(Generation(1, "new", (worker(0),)))
    assert deliberate(replace(alone, heard_since=100.0 - HEARD_S)) == deliberate(alone)
    for since in (None, 100.1 - HEARD_S):
        assert deliberate(replace(alone, heard_since=since)) == Wait("reducers to say who is there")
    late = replace(alone, now=160.0, heard_since=None)
    assert isinstance(deliberate(replace(late, now=159.9)), Wait)
    advice = deliberate(late)
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, ReducerUnavailable)
    assert str(advice.error) == "no reducer has said within 60 s (join_timeout_s) who is there"
    assert isinstance(deliberate(replace(late, heard_since=159.9)), Wait)


def test_who_has_gone_is_not_there():
    assert deliberate(hearing(said(0), said(1), said(2, is_gone=True))) == Wait("ranks [2] of 3")


def test_missing_workers_are_an_error_after_a_while():
    advice = deliberate(hearing(said(0), said(1), now=160.0))
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, WorkersMissing)
    assert "ranks [2] of 3 did not come within 60 s" in str(advice.error)


def test_two_processes_with_one_rank():
    twins = said(1, "a"), said(1, "b")
    assert isinstance(deliberate(hearing(twins[1], said(0), twins[0])), Wait)
    late = 100.0 + TAKEN_S
    refused = deliberate(hearing(twins[1], said(0), twins[0], now=late))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, RankTaken)
    assert "rank 1 is a live process on host1" in str(refused.error)
    assert isinstance(deliberate(hearing(twins[0], said(0), twins[1], now=late)), Wait)


def test_of_several_processes_with_rank_0_one_begins_the_job_with_one_of_each_rank():
    firsts, seconds = [said(0, life) for life in "abc"], [said(1, life) for life in "xab"]
    others = [*seconds, said(2)]
    expected = Propose(Generation(1, "new", (worker(0), worker(1), worker(2))))
    for order in (others, others[::-1]):
        assert deliberate(hearing(firsts[0], *firsts[1:], *order)) == expected
    for twin in firsts[1:]:
        heard = [one for one in firsts if one != twin]
        assert deliberate(hearing(twin, *heard, *others)) == Wait(
            "another process with rank 0, on host0, to go"
        )
        assert isinstance(deliberate(hearing(twin, *heard, *others, now=100.0 + TAKEN_S)), Refuse)


def test_other_settings_are_an_error_of_the_new_worker():
    other = said(0, settings="world_size=4, wire_dtype=None")
    advice = deliberate(hearing(said(1), other))
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, ConfigError)
    assert "world_size=4" in str(advice.error)


def test_workers_of_two_runs_never_meet_whoever_hears_whom():
    """Two runs of three ranks. Of each other worker nothing is heard, or that it is there, or a proposal of it."""
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
                advice = deliberate(hearing(own, *heard, lineage=Lineage(own.worker, size)))
                if any(other.settings != own.settings for other in heard):
                    assert isinstance(advice, Refuse)
                    assert isinstance(advice.error, ConfigError)
                    assert "(host" in str(advice.error)
                    refusals += 1
                if isinstance(advice, Propose):
                    assert {one.nonce[0] for one in advice.generation.workers} == {own.worker.nonce[0]}
    assert refusals


# ---- a job that runs ----


def test_a_new_worker_waits_to_be_taken_in():
    live = said(0, number=3), said(1, number=3)
    assert isinstance(deliberate(hearing(said(2, "b"), *live)), Wait)
    with_it = Generation(4, "x", (worker(0), worker(1), worker(2, "b")), (worker(2, "b"),))
    live = said(0, number=3, proposal=with_it), said(1, number=3)
    assert isinstance(deliberate(hearing(said(2, "b"), *live)), Wait)  # it must get the training first
    assert isinstance(deliberate(hearing(said(2, "b"), said(0, number=3), now=1e6)), Wait)


def test_a_newcomer_that_has_begun_to_take_the_training_does_not_begin_a_new_job():
    others = said(0, "b"), said(1, "b", proposal=FIRST)
    advice = deliberate(replace(hearing(said(2, "b"), *others), has_taken=True))
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, WorkersMissing)
    assert "have gone while rank 2 took their training" in str(advice.error)
    live = said(0, number=3)
    assert isinstance(deliberate(replace(hearing(said(2, "b"), live), has_taken=True)), Wait)


@pytest.mark.parametrize("has_taken", [False, True])
def test_of_a_job_that_is_not_heard_any_more_nobody_says_that_it_has_gone(has_taken):
    """Reducers that were started again know only those who have dialled them again."""
    heard = replace(hearing(said(0, "b"), said(1, "b"), said(2, "b")), has_taken=has_taken, silent_since=99.0)
    advice = deliberate(heard)
    assert isinstance(advice, Wait)
    assert "none of which can be heard any more" in advice.why
    late = deliberate(replace(heard, now=99.0 + heard.join_timeout_s))
    assert isinstance(late, Refuse if has_taken else Propose)


def test_a_newcomer_is_told_why_it_gets_nothing():
    live = said(0, number=3, refused=("b2",), refusal="a function"), said(1, number=3)
    advice = deliberate(hearing(said(2, "b"), *live))
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, ConfigError)
    assert "rank 0 (host0) cannot give its training to rank 2: a function" in str(advice.error)
    assert isinstance(deliberate(hearing(said(2, "c"), *live)), Wait)


def test_settings_of_those_who_run_count():
    strange = said(1, "c", settings="something else")
    assert isinstance(deliberate(hearing(said(2, "b"), said(0, number=3), strange)), Wait)


def test_a_live_worker_keeps_its_rank():
    late = deliberate(hearing(said(0, "b"), said(0, number=3), said(1, number=3), now=100.0 + TAKEN_S))
    assert isinstance(late, Refuse)
    assert isinstance(late.error, RankTaken)


# ---- after a loss ----


def test_those_who_are_left_go_on():
    gone = said(2, number=1, is_gone=True)
    mine = said(0, number=1, is_waiting=True)
    waiting = said(1, number=1, is_waiting=True)
    expected = Generation(2, "new", (worker(0), worker(1)))
    assert deliberate(hearing(mine, waiting, gone, lineage=after_first(0))) == Propose(expected)
    advice = deliberate(hearing(waiting, mine, gone, lineage=after_first(1)))
    assert advice == Wait("rank 0 to propose the next generation")
    proposing = replace(mine, proposal=expected)
    assert deliberate(hearing(waiting, proposing, gone, lineage=after_first(1))) == Join(expected)


def test_the_first_worker_may_be_lost_as_well():
    gone = said(0, number=1, is_gone=True)
    own, other = said(1, number=1, is_waiting=True), said(2, number=1, is_waiting=True)
    advice = deliberate(hearing(own, other, gone, lineage=after_first(1)))
    assert advice == Propose(Generation(2, "new", (worker(1), worker(2))))


def test_a_newcomer_that_did_not_get_the_training_is_not_waited_for():
    with_it = Generation(2, "x", (*FIRST.workers, worker(3, "b")), (worker(3, "b"),))
    lineage = after_first(0)
    lineage.join(with_it)
    waiting = [said(rank, number=2, is_waiting=True) for rank in (1, 2)]
    advice = deliberate(hearing(said(0, number=2, is_waiting=True), *waiting, said(3, "b"), lineage=lineage))
    assert isinstance(advice, Wait)
    missed = said(3, "b", missed="x")
    advice = deliberate(hearing(said(0, number=2, is_waiting=True), *waiting, missed, lineage=lineage))
    assert advice == Propose(Generation(3, "new", FIRST.workers))
    own = said(0, number=2, is_waiting=True, missed="x")  # this one is the donor
    advice = deliberate(hearing(own, *waiting, said(3, "b"), lineage=lineage))
    assert advice == Propose(Generation(3, "new", FIRST.workers))


def test_a_newcomer_whose_generation_does_not_start_ends():
    """The others could not have it propose: it lacks what they do without it."""
    newcomer = worker(0, "b")
    before = Generation(2, "y", (worker(1), worker(2)))
    with_it = Generation(3, "x", (newcomer, worker(1), worker(2)), (newcomer,))
    lineage = Lineage(newcomer, 3)
    lineage.inherit(before)
    lineage.join(with_it)
    waiting = [said(rank, number=3, is_waiting=True) for rank in (1, 2)]
    advice = deliberate(hearing(said(0, "b", number=3, is_waiting=True), *waiting, lineage=lineage))
    assert isinstance(advice, Refuse)
    assert isinstance(advice.error, WorkerLost)
    lineage.start(with_it)
    assert isinstance(
        deliberate(hearing(said(0, "b", number=3, is_waiting=True), *waiting, lineage=lineage)), Propose
    )


def test_a_worker_that_has_neither_gone_nor_noticed_is_waited_for():
    own, gone = said(0, number=1, is_waiting=True), said(2, number=1, is_gone=True)
    busy = said(1, number=1)
    assert isinstance(deliberate(hearing(own, busy, gone, lineage=after_first(0))), Wait)
    # One of three is no majority of them.
    late = deliberate(hearing(own, busy, gone, lineage=after_first(0), now=100.0 + STOPPED_S))
    assert isinstance(late, Wait)
    # Two are.
    other = said(1, number=1, is_waiting=True)
    stopped = said(2, number=1)
    late = deliberate(hearing(own, other, stopped, lineage=after_first(0), now=100.0 + STOPPED_S))
    assert late == Propose(Generation(2, "new", (worker(0), worker(1))))


def test_a_minority_waits_and_then_fails():
    own = said(2, number=1, is_waiting=True)
    assert isinstance(deliberate(hearing(own, lineage=after_first(2), now=130.0)), Wait)
    late = deliberate(hearing(own, lineage=after_first(2), now=160.0))
    assert isinstance(late, Refuse)
    assert isinstance(late.error, WorkersMissing)
    assert "waited 60 s (join_timeout_s) for ranks [0, 1]: ranks [2] are left of the 3 workers" in str(
        late.error
    )
    assert "proves that it has ended" in str(late.error)


def test_half_of_the_workers_goes_on_when_another_has_provably_ended():
    own, other = said(1, number=1, is_waiting=True), said(2, number=1, is_waiting=True)
    gone = said(0, number=1, is_gone=True)
    lineage = Lineage(own.worker, 4)
    first = Generation(1, "first", tuple(worker(rank) for rank in range(4)))
    lineage.join(first)
    lineage.start(first)
    lost = said(3, number=1, is_gone=True)
    advice = deliberate(hearing(own, other, gone, lost, lineage=lineage))
    assert isinstance(advice, Wait)
    assert "ranks [0, 3]: ranks [1, 2] are left" in advice.why
    assert "started again on the host where it was killed" in advice.why
    elsewhere = said(0, "b")
    advice = deliberate(hearing(own, other, gone, lost, elsewhere, lineage=lineage))
    assert isinstance(advice, Wait)
    assert "ranks [0] are there again, but on another host" in advice.why
    proof = said(0, "b", former=("a0", 1))
    lineage.ended.update(proof.ended)
    advice = deliberate(hearing(own, other, gone, lost, proof, lineage=lineage))
    assert advice == Propose(Generation(2, "new", (worker(1), worker(2))))
    lineage.ended.update(said(0, "b", former=("a0", 2)).ended)  # it may have gone on with worker 3
    assert isinstance(deliberate(hearing(own, other, gone, lost, proof, lineage=lineage)), Wait)


def test_a_newcomer_is_told_that_the_others_cannot_go_on_yet():
    live = [said(rank, number=1, is_waiting=True) for rank in (3, 1)]
    advice = deliberate(hearing(said(0, "b"), *live))
    assert isinstance(advice, Wait)
    assert "ranks [1, 3], which have lost others, to go on" in advice.why


def test_a_worker_without_which_the_others_have_gone_on():
    own, others = said(1, number=1, is_waiting=True), (said(0, number=2), said(2, number=2))
    assert isinstance(deliberate(hearing(own, *others, lineage=after_first(1))), Wait)
    late = deliberate(hearing(own, *others, lineage=after_first(1), now=100.0 + STOPPED_S))
    assert isinstance(late, Refuse)
    assert isinstance(late.error, WorkerLost)
    assert "gone on without rank 1, in generation 2" in str(late.error)


def test_others_in_another_generation_of_the_same_number_have_gone_on_as_well():
    lineage = after_first(1)
    lineage.join(Generation(2, "own", (worker(0), worker(1), worker(2))))
    own = said(1, number=2, generation="own", is_waiting=True)
    others = said(0, number=2), said(2, number=2)
    late = deliberate(hearing(own, *others, lineage=lineage, now=100.0 + STOPPED_S))
    assert isinstance(late, Refuse)
    assert isinstance(late.error, WorkerLost)


def test_new_workers_do_not_count_after_a_loss():
    own, gone = said(0, number=1, is_waiting=True), said(1, number=1, is_gone=True)
    other, new = said(2, number=1, is_waiting=True), said(1, "b")
    advice = deliberate(hearing(own, gone, other, new, lineage=after_first(0)))
    assert advice == Propose(Generation(2, "new", (worker(0), worker(2))))


def test_one_without_which_a_generation_has_started_does_not_count_after_a_loss():
    """It lacks what the others have done since, and gets an error."""
    lineage = after_first(0)
    second = Generation(2, "x", (worker(0), worker(1)))
    lineage.join(second)
    lineage.start(second)
    own, gone = said(0, number=2, is_waiting=True), said(1, number=2, is_gone=True)
    left_behind = said(2, number=1, is_waiting=True)
    advice = deliberate(hearing(own, gone, left_behind, lineage=lineage))
    assert advice == Propose(Generation(3, "new", (worker(0),)))


def test_one_that_joined_what_never_started_counts():
    lineage = after_first(0)
    lineage.join(Generation(2, "never started", (worker(0), worker(1))))
    own, gone = said(0, number=2, is_waiting=True), said(1, number=2, is_gone=True)
    other = said(2, number=1, is_waiting=True)
    advice = deliberate(hearing(own, gone, other, lineage=lineage))
    assert advice == Propose(Generation(3, "new", (worker(0), worker(2))))


def test_numbers_are_higher_than_any_that_was_heard_of():
    lineage = after_first(0)
    lineage.join(Generation(5, "never started", (worker(0), worker(1), worker(2))))
    own = said(0, number=5, is_waiting=True)
    others = said(1, number=7, is_waiting=True), said(2, number=1, is_gone=True)
    advice = deliberate(hearing(own, *others, lineage=lineage))
    assert advice == Propose(Generation(8, "new", (worker(0), worker(1))))


@pytest.mark.parametrize("number", [2, 3])
def test_of_several_proposals_the_one_with_the_highest_number_is_joined(number):
    low = Generation(2, "low", (worker(0), worker(1)))
    high = Generation(number, "z", (worker(0), worker(1)))
    own = said(1, number=1, is_waiting=True)
    others = said(0, number=1, proposal=low), said(2, number=1, proposal=high)
    assert deliberate(hearing(own, *others, lineage=after_first(1))) == Join(high)


# ---- who says of which workers a generation consists ----

SECOND = Generation(2, "second", (worker(0), worker(1), worker(3)), (worker(3),))


def test_of_those_that_have_joined_the_first_one_tells_those_who_look_for_a_generation():
    looking = said(2, number=0), said(0, number=0), said(1, number=0)
    assert must_tell(FIRST, worker(0), looking)
    joined = said(0, number=1), said(1, number=1)
    assert must_tell(FIRST, worker(0), (*joined, said(2)))
    assert not must_tell(FIRST, worker(1), (*joined, said(2)))
    assert must_tell(FIRST, worker(1), (replace(joined[0], is_gone=True), said(2)))


def test_nobody_tells_what_all_know():
    assert not must_tell(FIRST, worker(0), (said(1, number=1), said(2, number=1)))
    assert not must_tell(
        SECOND, worker(0), (said(1, number=1), said(3))
    )  # they have agreed on it; a newcomer is told
    assert not must_tell(
        FIRST, worker(0), (said(1, number=1), said(2, is_gone=True), said(5, is_waiting=True))
    )


def test_a_donor_that_does_not_know_its_generation_is_told():
    others = said(0, number=1, is_waiting=True), said(3)
    assert must_tell(SECOND, worker(1), others)
    assert not must_tell(SECOND, worker(3), (*others, said(1, number=2)))
