"""Which generation may follow which; all interleavings are in tests/model_check/test_generations.py."""

import pytest

from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker

A, B, C, D = (Worker(rank, "a") for rank in range(4))
NEW = Worker(3, "b")


def test_the_first_generation_has_all_workers():
    lineage = Lineage(B, 3)
    assert lineage.number == 0
    assert lineage.may_join(Generation(1, "x", (A, B, C)))
    assert not lineage.may_join(Generation(1, "x", (A, B)))
    assert not lineage.may_join(Generation(1, "x", (A, C, D)))
    assert lineage.may_join(Generation(5, "x", (A, B)))  # it joins a running job


@pytest.mark.parametrize(
    ("workers", "is_majority"),
    [((B, C, D), True), ((A, B), True), ((C, D), False), ((B, C), False), ((D,), False), ((A, NEW), False)],
)
def test_half_with_the_lowest_rank_counts_as_a_majority(workers, is_majority):
    before = Generation(1, "x", (A, B, C, D))
    assert Generation(2, "y", workers).is_majority_of(before, {}) == is_majority


@pytest.mark.parametrize(
    ("ended", "workers", "is_majority"),
    [
        ({A: 1}, (B, C), True),
        ({A: 1}, (B,), False),
        ({A: 2}, (B, C), False),  # it may have continued with D
        ({A: 2, C: 1}, (B, D), True),
        ({A: 0, C: 1}, (B,), True),  # the lower one of B and D
        ({A: 0, C: 1}, (D,), False),
        ({A: 1, B: 1, C: 1}, (D,), True),
        ({A: 1, B: 1, C: 1, D: 1}, (NEW,), False),
    ],
)
def test_workers_that_have_ended_and_joined_nothing_since_do_not_count(ended, workers, is_majority):
    before = Generation(1, "x", (A, B, C, D))
    assert Generation(3, "y", workers).is_majority_of(before, ended) == is_majority


def test_a_generation_that_was_joined_counts_until_one_has_started():
    lineage, first = Lineage(B, 4), Generation(1, "first", (A, B, C, D))
    lineage.join(first)
    lineage.start(first)
    without_a = Generation(2, "x", (B, C, D))
    assert lineage.may_join(without_a)
    lineage.join(without_a)
    assert lineage.number == 2
    assert not lineage.may_join(Generation(2, "y", (A, B, C)))
    assert not lineage.may_join(Generation(3, "y", (A, B)))  # no majority of those without A
    assert not lineage.may_join(Generation(3, "y", (B, C)))  # no majority of the first
    assert lineage.may_join(Generation(3, "y", (A, B, C)))
    lineage.start(without_a)
    assert lineage.may_join(Generation(3, "y", (B, C)))


def test_newcomers_alone_are_no_majority():
    before, ours = Generation(1, "x", (A, B)), Worker(4, "b")
    with_newcomers = Generation(2, "y", (A, NEW, ours), (NEW, ours))
    lineage = Lineage(NEW, 2)
    lineage.inherit(before)
    assert lineage.may_join(with_newcomers)
    lineage.join(with_newcomers)
    assert not lineage.may_join(Generation(3, "z", (NEW, ours)))
    assert lineage.may_join(Generation(3, "z", (A, NEW)))
    lineage.start(with_newcomers)
    assert lineage.may_join(Generation(3, "z", (NEW, ours)))


def test_the_donor_is_the_first_that_has_the_state():
    assert Generation(2, "x", (A, B, C), (A,)).donor == B


def test_a_worker_left_out_of_a_generation_is_in_no_later_one():
    lineage, first = Lineage(B, 4), Generation(1, "first", (A, B, C, D))
    lineage.join(first)
    lineage.start(first)
    without_a = Generation(2, "x", (B, C, D))
    lineage.join(without_a)
    assert lineage.may_join(Generation(3, "y", (A, B, C)))  # as far as B knows, the second has not started
    lineage.start(without_a)
    assert not lineage.may_join(Generation(3, "y", (A, B, C)))
    assert lineage.may_join(Generation(3, "y", (A, B, C), (A,)))
    with_new = Generation(3, "y", (B, C, NEW), (NEW,))
    lineage.join(with_new)
    assert lineage.may_join(Generation(4, "z", (B, C, NEW)))
