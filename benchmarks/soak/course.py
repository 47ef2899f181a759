"""A soak on one transport: its processes are started, loaded, sampled and judged."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import closing
from dataclasses import dataclass, field, replace

from benchmarks.lab.procfs import footprint
from benchmarks.lab.ranks import Ranks, RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.method.slices import following
from benchmarks.soak.flatness import SAMPLES_MIN, Series, Verdict, judge
from benchmarks.soak.load import RandomAllReduces

#: Seconds between the last result of a slice and the sample. Acknowledgements are sent within 50 ms,
#: and memory is released after them.
SETTLE_S = 0.2
#: Number of collectives in the first slice. The lengths of later slices depend on its speed.
FIRST_SLICE = 20


@dataclass(slots=True)
class Course:
    """The soak of one transport until its end or its failure."""

    transport: str
    seconds: float = 0.0
    collectives: int = 0
    tensor_bytes: int = 0
    #: Number of jobs that the ranks have begun.
    jobs: int = 0
    series: list[Series] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    #: The reason for an early end; empty without one.
    failure: str = ""


def soak(settings: Namespace, course: Course) -> None:
    """Run one course until it ends or fails.

    Raises:
        RanksFailed: a sum was wrong, or a process died.
    """
    with (
        closing(Reducers(settings.reducers)) as reducers,
        closing(Ranks(settings.workers, reducers.addresses)) as ranks,
    ):
        arguments = (reducers.addresses, course.transport, settings.seed, settings.bytes_max)
        ranks.load(RandomAllReduces, *arguments)
        pids = {f"rank {rank}": pid for rank, pid in enumerate(ranks.pids)}
        pids |= {f"reducer {index}": pid for index, pid in enumerate(reducers.pids)}
        _follow(settings, course, ranks, pids)


def judged(settings: Namespace, course: Course) -> list[Verdict]:
    """Return the verdicts, even for a course that ended early; none if there are too few samples."""
    if not course.series or min(len(series.seconds) for series in course.series) < SAMPLES_MIN:
        return []
    return [judge(series, settings.rss_allowance_bytes) for series in course.series]


def _follow(settings: Namespace, course: Course, ranks: Ranks, pids: dict[str, int]) -> None:
    course.series = [Series(name) for name in pids]
    began = opened = time.monotonic()
    count = FIRST_SLICE
    while course.seconds < settings.minutes * 60:
        if not course.jobs or 0 < settings.reopen_s <= time.monotonic() - opened:
            ranks.call("open", f"soak-{course.jobs}")
            course.jobs += 1
            opened = time.monotonic()
        started = time.monotonic()
        done = ranks.call("run", count)[0]
        seconds = time.monotonic() - started
        course.collectives += done.collectives
        course.tensor_bytes += done.tensor_bytes
        count = following(count, seconds, settings.every_s)
        time.sleep(SETTLE_S)
        course.seconds = time.monotonic() - began
        heaps = dict(
            zip(pids, ranks.call("heap_bytes", settings.collects), strict=False)
        )  # the ranks are first
        for series in course.series:
            try:
                sample = footprint(pids[series.name])
            except OSError as error:
                raise RanksFailed(f"{series.name} is gone: {error}") from error
            series.add(course.seconds, replace(sample, heap_bytes=heaps.get(series.name)))
    ranks.call("close")
