"""Share of the steps in which the GPU worked, from torch's profiler traces in Kineto's Chrome format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Name of the span around every step.
STEP = "training step"

Interval = tuple[float, float]


def kernel_share(traces: Sequence[dict[str, Any]], *, nccl: bool) -> float | None:
    """Return the share of the steps in which a kernel of any of these processes was on the GPU; None without a GPU.

    Args:
        traces: traces of all ranks that share the GPU. The steps of the first trace count, except the first
            step, in which the profiler starts.
        nccl: whether to count NCCL's kernels, which wait for the network on the GPU, or all other kernels.
    """
    kernels = [
        interval
        for trace in traces
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and ("nccl" in event["name"].lower()) is nccl
        for interval in [_interval(trace, event)]
    ]
    if not any(event.get("cat") == "kernel" for trace in traces for event in trace["traceEvents"]):
        return None
    windows = sorted(
        _interval(traces[0], event)
        for event in traces[0]["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"] == STEP
    )[1:]
    covered = sum(_covered(kernels, window) for window in windows)
    return covered / sum(end - begin for begin, end in windows)


def _interval(trace: dict[str, Any], event: dict[str, Any]) -> Interval:
    """Return start and end of an event in microseconds, on the clock that all processes share."""
    begin = trace.get("baseTimeNanoseconds", 0) / 1e3 + event["ts"]
    return begin, begin + event["dur"]


def _covered(intervals: Sequence[Interval], window: Interval) -> float:
    """Return how much of the window is in at least one interval."""
    until, total = window[0], 0.0
    for begin, end in sorted(intervals):
        begin, end = max(begin, until), min(end, window[1])
        if end > begin:
            total += end - begin
            until = end
    return total
