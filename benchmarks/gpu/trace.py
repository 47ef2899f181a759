"""Traces of torch's profiler: our threads are added, and the idle time of the GPU is read.

Traces have Kineto's Chrome format. torch's profiler sees the threads that autograd knows, and the
GPU's copies and kernels. It does not see our I/O and copying threads, so `Spans` measures their
times and adds them to the trace, on the same clock.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from worker_plugin.tensors.gpu.downloads import Downloads
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer

#: Name of the span around every step.
STEP = "training step"
_CATEGORY = "reduction"
#: Methods and their names in the trace. A push is the work of the I/O thread for a chunk before it
#: is sent.
_TIMED: tuple[tuple[type, str, str], ...] = (
    (Downloads, "_fetch", "copy to the host"),
    (Staging, "_deliver", "copy to the tensor"),
    (Transfer, "payload", "push a chunk"),
)

Interval = tuple[float, float]


class Spans:
    """A context manager that records the work of the plug-in's threads in this process."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._threads: dict[int, str] = {}
        self._originals: list[tuple[type, str, Any]] = []

    def __enter__(self) -> Spans:
        for owner, method, name in _TIMED:
            self._replace(owner, method, partial(self._timed, name=name))
        # A collective is in flight from when chunks can be pushed until its whole result is there.
        self._replace(Transfer, "own", partial(self._mark, phase="b"))
        self._replace(Staging, "deliver", partial(self._mark, phase="e"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, method, original in self._originals:
            setattr(owner, method, original)
        self._originals.clear()

    def add_to(self, document: dict[str, Any]) -> None:
        """Add the recorded spans to a trace of this process."""
        base_ns = document.get("baseTimeNanoseconds", 0)
        events = document["traceEvents"]
        for event in self._events:
            events.append(event | {"ts": (event["ts"] - base_ns) / 1e3})
        for thread, name in self._threads.items():
            named = {"ph": "M", "name": "thread_name", "pid": os.getpid(), "tid": thread}
            events.append(named | {"args": {"name": name}})

    def _replace(self, owner: type, method: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, method)
        self._originals.append((owner, method, original))
        setattr(owner, method, wrap(original))

    def _timed(self, original: Any, name: str) -> Any:
        def method(*args: Any) -> Any:
            begin_ns = time.time_ns()
            try:
                return original(*args)
            finally:
                self._note("X", name, begin_ns, args, dur=(time.time_ns() - begin_ns) / 1e3)

        return method

    def _mark(self, original: Any, phase: str) -> Any:
        def method(*args: Any) -> Any:
            self._note(phase, "in flight", time.time_ns(), args, id=_seq(args))
            return original(*args)

        return method

    def _note(self, phase: str, name: str, at_ns: int, args: tuple[Any, ...], **more: Any) -> None:
        thread = threading.get_native_id()
        self._threads[thread] = threading.current_thread().name
        event = {"ph": phase, "cat": _CATEGORY, "name": name, "pid": os.getpid(), "tid": thread, "ts": at_ns}
        self._events.append(event | more | {"args": {"collective": _seq(args)}})


def _seq(args: tuple[Any, ...]) -> int:
    """Return the number of the collective, whose transfer is among the arguments."""
    work = next(argument for argument in args if isinstance(argument, Transfer))
    return work.seq


def load(path: Path) -> dict[str, Any]:
    """Return a trace."""
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def kernel_share(traces: Sequence[dict[str, Any]], *, nccl: bool) -> float | None:
    """Return the share of the steps in which a kernel of any of these processes was on the GPU; None without a GPU.

    Args:
        traces: of all ranks that share the GPU. The steps of the first trace count, without the first
            step, in which the profiler begins.
        nccl: whether NCCL's kernels count, which wait for the network on the GPU; otherwise all other
            kernels count.
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
    """Return begin and end of an event in microseconds, on the clock that all processes share."""
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
