"""What `reducer trace` says: the parts of the time, what is open, and for whom the others waited."""

from reduction.timeline.clocks import offsets
from reduction.timeline.record import Span
from reduction.timeline.verdict import verdict
from unit.reduction.timeline.records import record, span


def said(*records):
    return list(verdict(records, offsets(records)))


def test_the_parts_add_up_and_the_first_one_does_not_count():
    lines = said(record(0, [span(0, 1.0, whole=900.0), span(1, 901.0), span(2, 905.0)]))
    assert lines == [
        "mean of 2 collectives: 2100.00 ms = handed over 100.00, waiting to push 100.00, pushing 500.00, "
        "waiting for results 1300.00, delivered 100.00"
    ]


def test_the_rank_that_was_late_most_often_is_named():
    spans = [[span(seq, 10.0 * seq + late[rank]) for seq, late in enumerate(LATE)] for rank in range(3)]
    assert said(*(record(rank, spans[rank], world_size=3) for rank in range(3)))[-1] == (
        "rank 2 (host-one) was late most often, for 2 of 4 collectives; the others waited 400.0 ms for it each time"
    )


#: By how much each of three ranks issues each of four collectives late.
LATE = [(0.0, 0.0, 0.5), (0.0, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.3)]


def test_ranks_that_are_together_are_called_so():
    lines = said(record(0, [span(0, 1.0)]), record(1, [span(0, 1.0005)]))
    assert lines == ["all ranks issued them within 1.0 ms of each other"]


def test_who_is_late_by_less_than_the_clocks_may_be_wrong_is_not_named():
    mine, theirs = span(1, 1.0), span(1, 1.1, whole=3.0, shift=50.0)
    assert said(record(0, [mine]), record(1, [theirs], clock="two"))[-1].startswith(
        "all ranks issued them within"
    )


def test_clocks_without_anything_in_common_are_not_compared():
    mine, theirs = span(1, 1.0), span(1, 9.0)
    mine.whole = mine.done = theirs.whole = theirs.done = None
    lines = said(record(0, [mine]), record(1, [theirs], clock="two"))
    assert lines[-1] == "the clocks of these hosts cannot be compared, so who was late is not known"


def test_what_is_open_and_why_it_ended_is_said():
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
        "rank 0 (host-one) was late most often, for 1 of 1 collectives; the others waited 2000.0 ms for it each time",
    ]
