"""The report of `reducer trace`: the parts of the time, open collectives, and the rank that others waited for."""

from dataclasses import replace

from reduction.timeline.clocks import offsets
from reduction.timeline.record import Lane, Span
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan
from reduction.timeline.verdict import verdict
from unit.reduction.timeline.records import record, span


def timed(*records):
    return records, offsets(records)


def said(*records):
    return list(verdict(*timed(*records)))


def test_the_parts_add_up_and_the_first_round_is_ignored():
    lines = said(record(0, [span(0, 1.0, whole=900.0), span(1, 901.0), span(2, 905.0)]))
    assert lines == [
        "mean of 2 rounds of 1 rank: 2100.00 ms for 0.02 kB in 1.0 collectives; ideal 1800.00 ms -> 86 %",
        "lost 300.00 ms: 100.00 ms copying to the host or to the thread that sends, 100.00 ms waiting to be sent "
        "(credit, GIL), 100.00 ms copying back",
    ]


def test_losses_are_listed_from_the_largest_to_the_smallest():
    early = [span(seq, 10.0 * seq, push_s=1.9, whole=10.0 * seq + 4) for seq in range(3)]
    late = [span(seq, 10.0 * seq + 1, push_s=0.9, whole=10.0 * seq + 4) for seq in range(3)]
    lines = list(verdict(*timed(record(0, early), record(1, late)), rate=16.0))
    assert lines[0] == (
        "mean of 4 rounds of 2 ranks: 3600.00 ms for 0.02 kB in 1.0 collectives; ideal 1000.00 ms -> 28 %"
    )
    assert lines[1].startswith(
        "lost 2600.00 ms: 1800.00 ms on the links or at the reducers, "
        "500.00 ms waiting for rank 1 (host-one) to begin, 100.00 ms "
    )
    assert lines[1].count("100.00 ms") == 3
    assert lines[2] == "-> most of it: on the links or at the reducers"


def test_a_rank_that_begins_late_is_pointed_out():
    early = [span(seq, 10.0 * seq, whole=10.0 * seq + 4) for seq in range(3)]
    late = [span(seq, 10.0 * seq + 3, whole=10.0 * seq + 4) for seq in range(3)]
    lines = list(verdict(*timed(record(0, early), record(1, late)), rate=1e9))
    assert lines[2] == "-> most of it: waiting for rank 1 (host-one) to begin: look at its data loader"


def test_reducer_records_add_detail():
    spans = [span(seq, 10.0 * seq) for seq in range(3)]
    busy = ReducerSpan(1, 10.3, 12.0, 0.0, 1.2, 20, {}, {0: 10, 1: 10}, {0: 0.1, 1: 0.1})
    theirs = ReducerRecord("cnn", 2, "r:1", "host-r", "one", 0.0, (busy,))
    lines = list(verdict(*timed(record(0, spans), record(1, spans)), [theirs], 1e9))
    assert "600.00 ms summing at reducer r:1 (CPU)" in lines[1]
    assert "on the links," in lines[1]
    last = ReducerSpan(2, 20.3, 22.0, 0.0, 0.0, 30, {}, {1: 30}, {1: 36.0})
    theirs = ReducerRecord("cnn", 2, "r:1", "host-r", "one", 0.0, (last,))
    lines = list(verdict(*timed(record(0, spans), record(1, spans)), [theirs], 1e9))
    assert "waiting for the rest of rank 1 (host-one)" in lines[1]
    assert lines[2] == (
        "-> rank 1 was last for 100 % of the chunks, which waited 1200.0 ms for it: look at its data loader and "
        "its link"
    )


def test_small_causes_are_shown_together():
    slow = span(1, 0.0, whole=500.0)
    lines = said(record(0, [slow]))
    assert lines[1] == "lost 300.00 ms: 300.00 ms other"


def test_one_rank_alone_waits_for_unnamed_others():
    spans = [span(1, 10.0), span(2, 20.0), span(3, 30.0)]
    lane = spans[2].lanes["r:1"]
    spans[2].lanes = {"r:1": replace(lane, first_result=lane.first_result + 1)}
    assert "333.33 ms waiting for other ranks to begin" in said(record(0, spans, world_size=4))[1]


def test_the_rank_that_was_late_most_often_is_named():
    spans = [[span(seq, 10.0 * seq + late[rank]) for seq, late in enumerate(LATE)] for rank in range(3)]
    assert said(*(record(rank, spans[rank], world_size=3) for rank in range(3)))[-1] == (
        "rank 2 (host-one) was late most often, for 2 of 4 collectives; the others waited 400.0 ms for it each time, "
        "0.80 s in all"
    )


#: Delay with which each of three ranks issues each of four collectives.
LATE = [(0.0, 0.0, 0.5), (0.0, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.3)]


def test_ranks_in_step_are_reported_as_such():
    lines = said(record(0, [span(0, 1.0)]), record(1, [span(0, 1.0005)]))
    assert lines == ["all ranks issued them within 1.0 ms of each other"]


def test_a_rank_late_by_less_than_the_clock_error_is_not_named():
    mine, theirs = span(1, 1.0), span(1, 1.1, whole=3.0, shift=50.0)
    assert said(record(0, [mine]), record(1, [theirs], clock="two"))[-1].startswith(
        "all ranks issued them within"
    )


def test_clocks_without_anything_in_common_are_not_compared():
    mine, theirs = span(1, 1.0), span(1, 9.0)
    mine.whole = mine.done = theirs.whole = theirs.done = None
    lines = said(record(0, [mine]), record(1, [theirs], clock="two"))
    assert lines[-1] == "the clocks of these hosts cannot be compared, so who was late is not known"


def test_open_collectives_and_the_final_error_are_reported():
    silent = span(5, 1.0, lanes=("a:1",))
    silent.whole = silent.done = silent.lanes["a:1"].last_result = None
    partly = span(6, 1.0)
    partly.whole = partly.done = None
    lines = said(
        record(0, [silent, Span(6, "x", 8, 8, 3.0)], error="WorkerLost: rank 1"), record(1, [partly])
    )
    assert lines == [
        "rank 0 (host-one) ended with WorkerLost: rank 1",
        "rank 0 (host-one) has 2 without a result, the oldest is 5: SUM of 4 x float32: 0 of 16 bytes not pushed, "
        "no result from a:1",
        "rank 1 (host-one) has 1 without a result, the oldest is 6: SUM of 4 x float32: 0 of 16 bytes not pushed, "
        "no result from some chunks",
        "rank 0 (host-one) was late most often, for 1 of 1 collectives; the others waited 2000.0 ms for it each time, "
        "2.00 s in all",
    ]


def test_nothing_is_lost_if_all_of_the_time_is_transfer():
    lane = Lane(1.0, 1.5, 1.2, 2.0)
    lines = said(record(0, [Span(1, "SUM", 16, 0, 1.0, 1.0, 2.0, 2.0, {"r:1": lane})]))
    assert lines == [
        "mean of 1 round of 1 rank: 1000.00 ms for 0.02 kB in 1.0 collectives; ideal 1000.00 ms -> 100 %"
    ]
