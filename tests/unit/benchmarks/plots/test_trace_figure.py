"""The picture of a trace: a line for each collective, and one for each thread of a profiler."""

from reduction.timeline.chrome import add_profile, document
from reduction.timeline.clocks import offsets
from unit.reduction.timeline.records import record, span

from benchmarks.plots.trace_figure import timeline


def test_lines_and_bars():
    records = [record(0, [span(0, 5.0), span(1, 6.0)])]
    trace = document(records, offsets(records))
    operators = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur}
        for name, ts, dur in (("outer", 0.0, 10.0), ("inner", 2.0, 3.0), ("next", 12.0, 1.0))
    ]
    title = {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}}
    profile = {"host_name": records[0].host, "baseTimeNanoseconds": 0, "traceEvents": [title, *operators]}
    add_profile(trace, profile | {"distributedInfo": {"rank": 0}}, records, offsets(records))
    [axes] = timeline(trace["traceEvents"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "cnn rank 0, 0",
        "cnn rank 0, 1",
        "rank 0, torch.profiler",
    ]
    # Five parts of each collective, and two operators that are in no other.
    assert len(axes.collections) == 12
