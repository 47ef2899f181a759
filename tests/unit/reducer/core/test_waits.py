"""Statistics of the last ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.model import LastRank, WaitTimes

from reducer.core.totals import JobTotals
from reducer.core.waits import LATEST, Waits


def test_every_last_rank_is_counted_and_its_waits_are_added_up():
    waits = Waits(JobTotals())
    assert waits.last() == ()
    for rank, waited_s in [(3, 0.5), (1, 0.25), (3, 2.0)]:
        waits.note(rank, waited_s, 0.0)
    assert waits.last() == (LastRank(1, 1, 0.25), LastRank(3, 2, 2.5))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, (0, 0, 0, 0)),
        (1, (0, 0, 0, 0)),
        (2, (0, 0, 0, 1)),
        (100, (49, 89, 98, 99)),
        (101, (50, 90, 99, 100)),
    ],
)
def test_percentiles_by_nearest_rank(count, expected):
    waits = Waits(JobTotals())
    for waited_s in reversed(range(count)):
        waits.note(0, float(waited_s), 0.0)
    assert waits.times() == WaitTimes(*map(float, expected))


def test_percentiles_are_about_the_latest_chunks_only():
    waits = Waits(JobTotals())
    waits.note(0, 100.0, 0.0)
    for _ in range(LATEST):
        waits.note(0, 1.0, 0.0)
    assert waits.times().max_s == 1.0
    assert waits.last() == (LastRank(0, LATEST + 1, LATEST + 100.0),)


def test_dropped_waits_no_longer_count():
    totals = JobTotals()
    waits = Waits(totals)
    waits.wait_for(1, 10.0)
    waits.settle(11.5)
    waits.forget()
    waits.settle(20.0)
    waits.note(1, 1.0, 21.0)
    assert totals.straggler_s == {1: 1.5}


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12
    ),
    st.lists(st.integers(0, 80), max_size=5),
)
def test_overlapping_waits_count_once(waits_of, ticks):
    """Overlapping waits count once, however often the time of ongoing ones is computed."""
    spans = [(rank, begin, begin + length) for rank, begin, length in waits_of]
    totals = JobTotals()
    waits = Waits(totals)
    events = [(begin, 0, rank) for rank, begin, _ in spans] + [(end, 2, rank) for rank, _, end in spans]
    for now, kind, rank in sorted(events + [(now, 1, 0) for now in ticks]):
        if kind == 0:
            waits.wait_for(rank, float(now))
        elif kind == 1:
            waits.settle(float(now))
        else:
            waits.note(rank, 0.0, float(now))
    assert sum(totals.chunk_waits.counts) == len(spans)
    for rank in {rank for rank, _, _ in spans}:
        union = {second for one, begin, end in spans if one == rank for second in range(begin, end)}
        assert totals.straggler_s[rank] == len(union)
