"""Offsets of clocks, from nothing but the collectives that ranks have in common."""

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


@pytest.mark.parametrize("theirs", [[], [span(7, 1.0)]], ids=["nothing", "others"])
def test_without_common_collectives_the_hosts_clocks_must_do(theirs):
    records = [record(0, [span(0, 1.0)]), record(1, theirs, clock="two", unix_offset=998.0)]
    assert [(offset.seconds, offset.error) for offset in offsets(records)] == [(0.0, 0.0), (2.0, None)]


def test_collectives_of_other_lives_of_the_job_do_not_count():
    other = span(0, 1.0)
    other.what = "MAX of 2 x int64"
    assert offsets([record(0, [span(0, 1.0)]), record(1, [other], clock="two")])[1].error is None


def test_what_is_not_whole_bounds_nothing():
    mine, theirs = span(0, 1.0), span(0, 1.0)
    mine.whole = theirs.whole = None
    assert offsets([record(0, [mine]), record(1, [theirs], clock="two")])[1].error is None
    theirs.lanes, mine.lanes = {}, {}
    assert offsets([record(0, [mine]), record(1, [theirs], clock="two")])[1].error is None


def test_collectives_of_other_jobs_say_nothing_of_a_clock():
    records = [record(0, [span(0, 1.0)]), record(1, [span(0, 501.0)], clock="two", job="other")]
    assert offsets(records)[1].error is None


def test_a_job_with_ranks_on_both_hosts_tells_it_for_all_jobs():
    here, there = record(0, [span(0, 1.0)]), record(1, [span(0, 1.0, shift=3.0)], clock="two")
    found = offsets([here, record(1, [span(0, 501.0)], clock="two", job="other"), there])
    assert found[1] == found[2]
    assert abs(found[1].seconds - 3.0) <= found[1].error
