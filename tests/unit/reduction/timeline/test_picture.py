"""The picture of a trace: its rows and bars, and the part of the trace that it shows."""

from typing import NamedTuple
from xml.etree import ElementTree as xml

import pytest
from reduction.errors import ConfigError
from reduction.timeline import picture
from reduction.timeline.chrome import add_profile, document
from reduction.timeline.clocks import offsets
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan
from unit.reduction.timeline.records import record, span

#: The XML namespace of the picture's elements.
SVG = "{http://www.w3.org/2000/svg}"


class Drawn(NamedTuple):
    """Contents of a picture: titles of rows, texts of bars and of the axis, and positions of rows."""

    titles: list[str]
    bars: list[str]
    axis: list[str]
    rows: set[str]


def drawn(records, reducers=(), profile=None, **window):
    known = offsets(records)
    trace = document(records, known, reducers, known[: len(reducers)])
    if profile is not None:
        add_profile(trace, profile, records, known)
    svg = xml.fromstring(picture.picture(trace["traceEvents"], **window))
    texts = list(svg.iter(f"{SVG}text"))
    titles = [text.text for text in texts if text.get("text-anchor") == "end" and text.text]
    axis = [text.text for text in texts if text.get("text-anchor") == "middle"]
    bars = [rect for rect in svg.iter(f"{SVG}rect") if len(rect)]
    return Drawn(titles, [bar[0].text for bar in bars], axis, {bar.get("y") for bar in bars})


def seqs(bars):
    return sorted({int(bar.partition(":")[0]) for bar in bars})


def test_a_collective_has_a_bar_for_each_of_its_parts():
    titles, bars, axis, _ = drawn([record(0, [span(0, 5.0)]), record(1, [span(0, 6.0)])])
    assert titles == ["cnn rank 0 (host-one)", "cnn rank 1 (host-one)"]
    assert len(bars) == 10
    assert bars[:2] == [
        "0: SUM of 4 x float32: handed over, 100.000 ms",
        "0: SUM of 4 x float32: waiting to push, 100.000 ms",
    ]
    assert axis == ["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s", "2.5 s", "3.0 s"]


def test_overlapping_collectives_get_their_own_rows():
    assert len(drawn([record(0, [span(0, 5.0), span(1, 6.0), span(2, 8.0)])]).rows) == 2


def test_the_middle_is_shown_unless_a_window_is_given():
    records = [record(0, [span(seq, 5.0 + 3 * seq) for seq in range(40)])]
    _, bars, axis, _ = drawn(records)
    assert seqs(bars) == list(range(17, 17 + picture.SHOWN))
    assert axis[0] == "55 s"
    assert seqs(drawn(records, since=29.5, until=33.5).bars) == [10, 11]
    # Both windows are as wide as the middle one.
    assert seqs(drawn(records, since=29.5).bars) == list(range(10, 16))
    assert seqs(drawn(records, until=11.9).bars) == list(range(4))


def test_nothing_to_draw_is_an_error_that_names_the_end_of_the_trace():
    with pytest.raises(ConfigError, match=r"from 100 s to 101 s: the trace ends at 2.1 s"):
        drawn([record(0, [span(0, 5.0)])], since=100.0, until=101.0)
    with pytest.raises(ConfigError, match=r"the trace ends at 0 s"):
        drawn([record(0, [])])


def test_unfinished_collectives_extend_to_the_end():
    half, fresh = span(1, 8.0), span(2, 9.0)
    half.whole = half.done = None
    fresh.taken = fresh.whole = fresh.done = None
    fresh.lanes = {}
    assert drawn([record(0, [span(0, 5.0), half, fresh])]).bars[-4:] == [
        "1: SUM of 4 x float32: waiting to push, 100.000 ms",
        "1: SUM of 4 x float32: pushing, 500.000 ms",
        "1: SUM of 4 x float32: not done",
        "2: SUM of 4 x float32: not done",
    ]


def test_reducers_and_the_outermost_operators_of_each_thread_have_rows():
    ranks = [record(0, [span(0, 5.0)])]
    sums = ReducerSpan(0, 5.2, 6.5, 0.0, 0.1, 1, {0: 5.3}, {0: 1}, {0: 0.1})
    reducers = [ReducerRecord("cnn", 2, "r:1", "host-one", "one", 1000.0, (sums,))]
    operators = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur}
        for name, tid, ts, dur in (
            ("inner", 1, 2e3, 3e3),
            ("outer", 1, 0.0, 1e4),
            ("next", 1, 2e4, 1e3),
            ("\x1b[2J", 2, 0.0, 1e3),
        )
    ]
    titles = [{"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}}]
    profile = {
        "host_name": "host-one",
        "baseTimeNanoseconds": 1_005_000_000_000,
        "traceEvents": titles + operators,
    }
    found, bars, *_ = drawn(ranks, reducers, profile | {"distributedInfo": {"rank": 0}})
    # Long titles lose their middle.
    assert found == [
        "cnn rank 0 (host-one)",
        "cnn reducer r:1 (host-one)",
        *["python, rank 0 (ho…ne), torch.profiler"] * 2,
    ]
    assert bars[5:] == [
        "sum 0: waiting for ranks, 100.000 ms",
        "sum 0: summing, 1200.000 ms",
        "outer: torch's operators, 10.000 ms",
        "next: torch's operators, 1.000 ms",
        "\\x1b[2J: torch's operators, 1.000 ms",
    ]
