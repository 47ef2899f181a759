"""A job's lost time: each cause gets its cost, and all add up. test_verdict.py has the plain causes."""

import pytest
from reduction.timeline.clocks import Offset, offsets
from reduction.timeline.loss import loss
from reduction.timeline.record import Lane, Record, Span
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan

#: Bytes of each collective, and the rate at which one takes a second.
NBYTES = 1000


def span(seq, start, *, push=0.0, pushed=0.5, whole=1.0, nbytes=NBYTES):
    """Return a collective that is issued at `start`; the other times are relative to it."""
    lane = Lane(start + push, start + pushed, start + push + 0.1, start + whole)
    return Span(seq, "SUM", nbytes, 0, start, start, start + whole, start + whole, {"r:1": lane})


def record(rank, spans, world_size=2, clock="one"):
    return Record("cnn", rank, world_size, f"host{rank}", clock, 0.0, "", tuple(spans), ())


def reducer(*spans, world_size=2):
    return ReducerRecord("cnn", world_size, "r:1", "host-r", "one", 0.0, spans)


def lost(records, reducers=(), rate=NBYTES):
    found = loss(records, offsets(records), reducers, rate)
    assert sum(found.shares.values()) == pytest.approx(found.parts.measured - found.ideal)
    return found


def test_a_rank_that_is_slow_at_the_end():
    first = record(0, [span(1, 10.0, pushed=0.5, whole=3.0)])
    slow = record(1, [span(1, 10.0, pushed=2.4, whole=3.0)])
    found = lost([first, slow])
    assert found.slow == {1: pytest.approx(2 * 1.9)}
    assert found.link == pytest.approx(2 * 0.1)


def test_a_rank_that_stalls_in_a_transfer_and_holds_up_all_others():
    records = [record(rank, [span(1, 10.0, pushed=2.5, whole=3.0)]) for rank in range(2)]
    at_one = ReducerSpan(1, 10.1, 12.9, 0.0, 0.1, 9, {}, {0: 5, 1: 4}, {0: 0.5, 1: 6.4}, {0: 0.1, 1: 1.6})
    at_other = ReducerSpan(1, 10.1, 12.9, 0.0, 0.1, 9, {}, {0: 9}, {0: 0.9}, {0: 0.2})
    found = lost(records, [reducer(at_one), reducer(at_other)])
    assert found.slow == {1: pytest.approx(2 * 1.6)}
    assert found.link == pytest.approx(2 * 0.4)


def test_the_straggler_of_the_job_is_blamed_for_the_rest():
    records = [record(rank, [span(1, 10.0, pushed=2.0, whole=3.0)], world_size=3) for rank in range(3)]
    there = ReducerSpan(1, 10.1, 12.9, 0.0, 0.1, 20, {}, {0: 4, 2: 16}, {0: 0.1, 2: 16.0})
    start = ReducerSpan(0, 1.0, 2.0, 0.0, 0.1, 90, {}, {1: 90}, {1: 50.0})
    found = lost(records, [reducer(there, start, world_size=3)])
    assert found.straggler[:2] == (2, 0.8)
    assert found.slow == {2: pytest.approx(6.0)}


def test_a_rank_that_is_always_a_little_behind_on_a_slow_link_is_not_the_cause():
    records = [record(rank, [span(1, 10.0, pushed=0.1, whole=3.0)], world_size=3) for rank in range(3)]
    there = ReducerSpan(1, 10.1, 12.9, 0.0, 0.1, 20, {}, {0: 4, 2: 16}, {0: 0.1, 2: 1.6})
    found = lost(records, [reducer(there, world_size=3)])
    assert found.straggler is None
    assert found.link == pytest.approx(6.0)


def test_incomparable_clocks_and_missing_ranks_blame_nobody():
    spans = [span(1, 10.0), span(2, 20.0, whole=3.0)]
    alone = [record(0, spans, world_size=4)]
    assert lost(alone, rate=None).link == pytest.approx(2.0)
    records = [record(0, spans), record(1, [span(1, 10.0), span(2, 22.0)], clock="two")]
    found = loss(records, [Offset(0.0, 0.0), Offset(0.0, None)], (), NBYTES)
    assert not found.slow
    assert set(found.parts.ranks) <= {None}


def test_a_collective_that_was_never_pushed_has_no_last_rank():
    empty = Span(1, "SUM", 0, 0, 10.0, 10.0, 10.5, 10.5)
    found = lost([record(0, [empty]), record(1, [empty])])
    assert not found.slow
    assert found.ideal == 0.0
