"""The file of a reducer's record."""

import json

import pytest
from reduction.errors import ConfigError
from reduction.timeline.clocks import Offset, reducer_offsets
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan, from_json
from unit.reduction.timeline.records import record, span

RECORD = ReducerRecord(
    "cnn",
    2,
    "r:1",
    "host",
    "three",
    1000.0,
    (ReducerSpan(1, 5.2, 6.9, 0.0, 0.5, 2, {0: 5.2}, {0: 2}, {0: 0.1}),),
)


def test_a_record_survives_a_round_trip():
    assert from_json(RECORD.to_json(), "file") == RECORD


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 7}, "^file has format 7, but this version reads format 1"),
        ({"job": 5}, "not a record of a reducer: TypeError: job is 5"),
        ({"spans": [{"seq": 1}]}, "not a record of a reducer"),
        ({"more": 1}, "not a record of a reducer"),
    ],
)
def test_an_invalid_record_is_refused(change, reason):
    with pytest.raises(ConfigError, match=reason):
        from_json(json.dumps(json.loads(RECORD.to_json()) | change), "file")


def test_its_clock_is_compared_with_those_of_the_ranks():
    # The rank pushes at 5.2 and has the complete result at 7. The reducer's clock is 50 ahead.
    mine = record(0, [span(1, 5.0), span(2, 9.0)])
    theirs = ReducerRecord(
        "cnn", 2, "r:1", "host", "three", 900.0, (ReducerSpan(1, 55.3, 56.9, 0, 0, 1, {0: 55.3}),)
    )
    (found,) = reducer_offsets([theirs], [mine], [Offset(0.0, 0.0)])
    assert found.seconds == pytest.approx(50.0, abs=found.error)
    assert found.error < 0.2


def test_a_reducer_on_a_ranks_host_shares_its_clock():
    mine = [record(0, []), record(1, [], clock="three")]
    assert reducer_offsets([RECORD], mine, [Offset(0.0, 0.0), Offset(4.0, 0.1)]) == [Offset(4.0, 0.1)]


def test_without_anything_in_common_the_hosts_clocks_are_used():
    unfinished = span(1, 5.0)
    unfinished.whole = None
    unfinished.lanes = {}
    mine = [record(0, [unfinished], job="other"), record(0, [unfinished])]
    assert reducer_offsets([RECORD], mine, [Offset(0.0, 0.0)] * 2) == [Offset(0.0, None)]
