"""The parts of rounds add up, and each moment belongs to the right one."""

import pytest
from reduction.timeline.parts import (
    Begun,
    Parts,
    begun_by_own_clock,
    best_rate,
    chunk_time,
    ideal,
    parts,
    rounds,
)
from reduction.timeline.record import Lane, Span


def span(seq, issued, taken, push, pushed, whole, done, *, nbytes=1000, first_result=None):
    lanes = {} if push is None else {"r:1": Lane(push, pushed, first_result, whole)}
    return Span(seq, "SUM", nbytes, 0, issued, taken, whole, done, lanes)


def total(one):
    return one.transfer + sum(one.ranks.values()) + one.credit + one.copy + one.copy_back


def test_the_parts_of_one_collective_and_of_several():
    one = parts([span(1, 0.0, 1.0, 3.0, 4.0, 9.0, 9.5)], {1: Begun(5.0, 2)})
    assert one == Parts(
        1, 1, 1000, measured=9.5, copy=1.0, credit=2.0, ranks={2: 2.0}, transfer=4.0, copy_back=0.5
    )
    one += parts([span(2, 10.0, 11.0, 13.0, 14.0, 19.0, 19.5)], {2: Begun(14.0, 0)})
    assert one == Parts(
        2, 2, 2000, measured=19.0, copy=2.0, credit=4.0, ranks={2: 2.0, 0: 1.0}, transfer=9.0, copy_back=1.0
    )
    assert one.measured == pytest.approx(total(one))


def test_work_during_a_transfer_costs_nothing():
    first, second = span(1, 0.0, 1.0, 1.0, 2.0, 6.0, 7.0), span(2, 0.5, 4.0, 5.0, 6.0, 8.0, 8.25)
    one = parts([first, second], {})
    assert (one.copy, one.credit, one.transfer, one.copy_back) == (1.0, 0.0, 7.0, 0.25)
    assert one.measured == total(one) == 8.25


def test_late_ranks_have_a_part_and_ranks_that_began_earlier_have_none():
    group = [span(1, 0.0, 0.0, 0.0, 1.0, 4.0, 4.0), span(2, 4.0, 4.0, 6.0, 7.0, 9.0, 9.0)]
    one = parts(group, {1: Begun(2.0, 0), 2: Begun(7.0, 3)})
    assert (dict(one.ranks), one.transfer) == ({0: 2.0, 3: 1.0}, 4.0)
    assert not parts(group[1:], {2: Begun(5.0, 1)}).ranks
    assert parts(group[1:], {2: Begun(99.0, 1)}).ranks == {1: 3.0}, "it never began"


def test_an_empty_collective_has_no_transfer():
    one = parts([span(1, 0.0, None, None, None, None, 1.0, nbytes=0)], {})
    assert one.measured == total(one) == 1.0
    assert one.copy_back == 0


def test_rounds_end_when_nothing_is_in_flight():
    spans = [span(0, 0, 0, 0, 1, 2, 3), span(1, 2, 2, 2, 3, 4, 5), span(2, 5, 5, 5, 6, 7, 8)]
    open_one = span(3, 9, 9, 9, 9, None, None)
    assert [[one.seq for one in group] for group in rounds([*spans, open_one])] == [[0, 1], [2]]
    assert list(rounds([])) == []


def test_one_rank_alone_infers_late_starts_from_its_waits():
    spans = [
        span(1, 0.0, 0.0, 0.0, 1.0, 4.0, 4.0, first_result=0.5),
        span(2, 10.0, 10.0, 10.0, 11.0, 17.0, 17.0, first_result=13.5),
        span(3, 20.0, 20.0, 20.0, 21.0, 29.0, 29.0, first_result=25.0, nbytes=8000),
        Span(4, "SUM", 0, 0, 30.0),
    ]
    begun = begun_by_own_clock(spans)
    assert begun == {1: Begun(0.0, None), 2: Begun(13.0, None), 3: Begun(20.0, None)}
    assert parts(spans[1:2], begun).ranks == {None: 3.0}


def test_the_ideal_is_that_of_the_best_large_round():
    large = Parts(1, 1, 8000, measured=5.0, transfer=4.0)
    slower = Parts(1, 1, 8000, measured=9.0, transfer=8.0)
    small = Parts(1, 1, 100, measured=0.01, transfer=0.001)
    rate = best_rate([large, slower, small])
    assert rate == 2000.0
    assert (ideal(large, rate), ideal(slower, rate), ideal(small, rate)) == (4.0, 4.0, 0.001)
    assert best_rate([]) == 0.0
    assert ideal(slower, 0.0) == 8.0


def test_the_time_of_a_chunk_is_averaged_over_the_first_and_the_last():
    spans = [
        span(1, 0.0, 0.0, 1.0, 2.0, 5.0, 5.0, first_result=1.5),
        span(2, 0.0, 0.0, 1.0, 2.0, 5.0, 5.0),
        span(3, 0.0, None, None, None, None, 1.0),
    ]
    assert chunk_time(spans) == (0.5 + 3.0) / 2
    assert chunk_time(spans[1:]) == 0.0
