"""The file for Perfetto: every slice ends, none overlaps another on its line, and all times are of one clock."""

import dataclasses
from collections import defaultdict

import pytest
from reduction.errors import ConfigError
from reduction.timeline.chrome import add_profile, document, phases
from reduction.timeline.clocks import Offset, offsets
from reduction.timeline.record import Lane, Span
from reduction.timeline.reducer_record import ReducerRecord, ReducerSpan
from unit.reduction.timeline.records import record, span


def slices(trace):
    """Return (process, line, name, start, end) of all slices. Each must lie inside those that are open."""
    found, open_ones = [], defaultdict(list)
    for event in trace["traceEvents"]:
        key = event.get("cat"), event.get("id")
        if event["ph"] == "b":
            open_ones[key].append(event)
        elif event["ph"] == "e":
            begin = open_ones[key].pop()
            assert begin["name"] == event["name"]
            assert begin["ts"] <= event["ts"]
            assert not open_ones[key] or open_ones[key][-1]["ts"] <= begin["ts"]
            found.append((event["pid"], event["tid"], event["name"], begin["ts"], event["ts"]))
    assert not any(open_ones.values())
    return found


def test_all_ranks_use_the_clock_of_the_first():
    records = [record(0, [span(0, 5.0)]), record(1, [span(0, 5.0, shift=100.0)], clock="two")]
    trace = document(records, offsets(records))
    assert trace["baseTimeNanoseconds"] == 1_005_000_000_000
    starts = {pid: start for pid, tid, name, start, _ in slices(trace) if name.startswith("0: SUM")}
    assert starts[0] == 0
    assert starts[1] == pytest.approx(0, abs=trace["clocks"]["cnn rank 1"]["error_s"] * 1e6 + 1)


def test_a_collective_is_a_slice_with_all_its_phases_and_one_per_reducer():
    records = [record(0, [span(0, 5.0, lanes=("a:1", "b:2"))], notes=[(6.0, "epoch 2")])]
    trace = document(records, offsets(records))
    found = slices(trace)
    assert [name for _, tid, name, *_ in found if tid == 0] == [*ALL, "0: SUM of 4 x float32"]
    assert sorted((tid, name) for _, tid, name, *_ in found if tid) == [
        (1, "push 0"),
        (1, "results 0"),
        (2, "push 0"),
        (2, "results 0"),
    ]
    names = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {0: "collectives", 1: "a:1", 2: "b:2"}
    assert [(event["name"], event["ts"]) for event in trace["traceEvents"] if event["ph"] == "i"] == [
        ("epoch 2", 1e6)
    ]


ALL = ["handed over", "waiting to push", "pushing", "waiting for results", "delivered"]


@pytest.mark.parametrize(
    ("one", "names"),
    [
        (span(0, 1.0), ALL),
        (Span(0, "SUM", 16, 8, 1.0), []),
        (Span(0, "SUM", 16, 8, 1.0, taken=2.0), ALL[:1]),
        (Span(0, "SUM", 16, 8, 1.0, taken=2.0, lanes={"a:1": Lane(3.0, 4.0)}), ALL[:3]),
    ],
)
def test_phases_follow_each_other_until_now_or_the_end(one, names):
    parts = list(phases(one))
    assert [name for name, *_ in parts] == names
    times = [one.issued, *(end for _, _, end in parts)]
    assert [begin for _, begin, _ in parts] == times[:-1]
    assert one.done in (None, times[-1])
    records = [record(0, [one])]
    assert slices(document(records, offsets(records)))


def test_a_reducer_has_a_line_of_its_sums():
    sums = (
        ReducerSpan(0, 5.3, 6.9, 1.0, 1.5, 4, {0: 5.3, 1: 5.9}, {1: 4}),
        ReducerSpan(1, 8.0, 8.0, 2.0, 2.0),
    )
    theirs = ReducerRecord("cnn", 2, "r:1", "host-r", "one", 1000.0, sums)
    records = [record(0, [span(0, 5.0)])]
    trace = document(records, offsets(records), [theirs], [Offset(0.0, 0.0)])
    found = [one[2:] for one in slices(trace) if one[0] == 1]
    assert found == [
        ("waiting for ranks", 300_000, 900_000),
        ("summing", 900_000, 1_900_000),
        ("sum 0", 300_000, 1_900_000),
        ("waiting for ranks", 3_000_000, 3_000_000),
        ("summing", 3_000_000, 3_000_000),
        ("sum 1", 3_000_000, 3_000_000),
    ]
    (first, _) = [event for event in trace["traceEvents"] if event.get("args", {}).get("chunks") is not None]
    assert first["args"] == {"seq": 0, "chunks": 4, "last": {"1": 4}, "cpu_ms": 500.0}
    assert trace["clocks"]["cnn reducer r:1"] == {"host": "host-r", "offset_s": 0.0, "error_s": 0.0}


def profile(host, base_s, *events, **more):
    """Return an export of torch.profiler with these events."""
    return {"host_name": host, "baseTimeNanoseconds": int(base_s * 1e9), "traceEvents": list(events)} | more


def test_profiler_events_use_the_clock_of_the_first_rank():
    # The second host's monotonic clock shows 100 s more, and its wall clock 2 s more, than the first one's.
    records = [record(0, [span(0, 5.0)]), record(1, [span(0, 5.0, shift=100.0)], clock="two")]
    records[1] = dataclasses.replace(records[1], host="other", unix_offset=records[0].unix_offset - 98.0)
    clocks = [Offset(0.0, 0.0), Offset(100.0, 0.0)]
    trace = document(records, clocks)
    begin_s = trace["baseTimeNanoseconds"] / 1e9
    event = {"ph": "X", "name": "reduction:all_reduce", "pid": 0, "tid": 7, "ts": 500_000.0, "dur": 1.0}
    name = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}
    add_profile(trace, profile(records[0].host, begin_s - 0.5, dict(event)), records, clocks)
    there = profile("other", begin_s + 2.0, dict(event), name, distributedInfo={"rank": 1})
    add_profile(trace, there, records, clocks)
    found = [one for one in trace["traceEvents"] if one["name"] == event["name"]]
    assert [one["ts"] for one in found] == pytest.approx([0.0, 500_000.0], abs=1.0)
    assert [one["pid"] for one in found] == [f"0 of {records[0].host}", "0 of other"]
    assert trace["traceEvents"][-1]["args"]["name"] == "python, rank 1 (other), torch.profiler"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (profile("elsewhere", 0), "host 'elsewhere' has no record in this trace, only \\["),
        ({}, "not an export of torch.profiler 2.4 or later: KeyError"),
        ([], "not an export of torch.profiler"),
        (profile("here", 0, 3), "not an export of torch.profiler"),
    ],
)
def test_invalid_profiles_are_refused(made, text):
    records = [dataclasses.replace(record(0, [span(0, 5.0)]), host="here")]
    trace = document(records, offsets(records))
    with pytest.raises(ConfigError, match=text):
        add_profile(trace, made, records, offsets(records))
