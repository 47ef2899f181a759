"""Clock offsets, derived only from the collectives that ranks have in common."""

import random

import pytest
from reduction.timeline.clocks import offsets
from unit.reduction.timeline.records import record, span


@pytest.mark.parametrize("shift", [-5000.0, 0.0, 3.25])
def test_the_offset_is_found_within_its_error(shift):
    chance = random.Random(1)
    mine, theirs = [], []
    for seq in range(100):
        begin = 10.0 * seq
        pushes = [chance.uniform(0.01, 2) for _ in range(2)]
        whole = [begin + 0.2 + max(pushes) + chance.uniform(0.001, 1) for _ in range(2)]
        mine.append(span(seq, begin, push_s=pushes[0], whole=whole[0]))
        theirs.append(span(seq, begin, push_s=pushes[1], whole=whole[1], shift=shift))
    found = offsets([record(0, mine), record(1, theirs, clock="two")])
    assert found[0].seconds == found[0].error == 0.0
    assert abs(found[1].seconds - shift) <= found[1].error < 0.1


def test_one_clock_needs_no_estimate():
    found = offsets([record(0, [span(0, 1.0)]), record(1, [])])
    assert [(offset.seconds, offset.error) for offset in found] == [(0.0, 0.0)] * 2


def of_another_life():
    other = span(0, 1.0)
    other.what = "MAX of 2 x int64"
    return other


def not_whole(**changes):
    one = span(0, 1.0)
    one.whole = None
    for name, value in changes.items():
        setattr(one, name, value)
    return one


@pytest.mark.parametrize(
    ("mine", "theirs", "job"),
    [
        (span(0, 1.0), None, "cnn"),
        (span(0, 1.0), span(7, 1.0), "cnn"),
        (span(0, 1.0), of_another_life(), "cnn"),
        (span(0, 1.0), span(0, 501.0), "other"),
        (not_whole(), not_whole(), "cnn"),
        (not_whole(lanes={}), not_whole(lanes={}), "cnn"),
    ],
    ids=["none", "other numbers", "another life", "another job", "not whole", "nothing pushed"],
)
def test_without_common_collectives_the_hosts_clocks_are_used(mine, theirs, job):
    there = [] if theirs is None else [theirs]
    records = [record(0, [mine]), record(1, there, clock="two", unix_offset=998.0, job=job)]
    assert [(offset.seconds, offset.error) for offset in offsets(records)] == [(0.0, 0.0), (2.0, None)]


def test_a_job_with_ranks_on_both_hosts_gives_the_offset_for_all_jobs():
    here, there = record(0, [span(0, 1.0)]), record(1, [span(0, 1.0, shift=3.0)], clock="two")
    found = offsets([here, record(1, [span(0, 501.0)], clock="two", job="other"), there])
    assert found[1] == found[2]
    assert abs(found[1].seconds - 3.0) <= found[1].error
