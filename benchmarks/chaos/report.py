"""The report of the chaos tool: how long each strike delayed the job, and the goodput, as text and as JSON.

Two times tell how long a strike is felt:

next step     from the signal until the last rank next ends a step. A step that already had its results is not
              delayed, so this may be short
whole step    from the signal to the end of the first step that began after it. This includes the full cost of
              the signal

Compare them with the time until the reducer was serving again. The job has to wait for that if it
was the only reducer.
"""

from __future__ import annotations

import bisect
from argparse import Namespace
from typing import Any, NamedTuple

from benchmarks.chaos.course import Course, Training
from benchmarks.method.table import markdown, tail

_COLUMNS = {"next step": "next_step_s", "whole step": "whole_step_s", "reducer back": "back_s"}


class Felt(NamedTuple):
    """How long the job felt one strike, in seconds."""

    #: Seconds since the first strike.
    at_s: float
    reducer: int
    #: Number of other reducers that were serving at that moment.
    others: int
    #: Whether the reducer was started by a rank on its own host.
    is_colocated: bool
    next_step_s: float
    whole_step_s: float
    back_s: float


def felt(course: Course) -> list[Felt]:
    """Return how long each strike was felt. Steps follow the last strike, so every strike has an end."""
    training, first = course.disturbed, course.struck[0].at_s if course.struck else 0.0
    rows = []
    for strike in course.struck:
        following = training.done_s[bisect.bisect_right(training.done_s, strike.at_s)]
        whole = training.done_s[bisect.bisect_left(training.begun_s, strike.at_s)]
        times = (end - strike.at_s for end in (following, whole, strike.back_s))
        rows.append(Felt(strike.at_s - first, strike.reducer, strike.others, strike.is_colocated, *times))
    return rows


def goodput(course: Course) -> float:
    """Return disturbed speed / undisturbed speed."""
    return course.reference.seconds / course.disturbed.seconds


def lines(settings: Namespace, course: Course) -> list[str]:
    """Return the printed report."""
    rows = felt(course)
    table = []
    groups = [("all strikes", rows)]
    if len({row.others == 0 for row in rows}) == 2:
        groups += [
            ("while others served", [row for row in rows if row.others]),
            ("of the only one left", [row for row in rows if not row.others]),
        ]
    if any(row.is_colocated for row in rows):
        groups.append(("of reducers on the ranks' hosts", [row for row in rows if row.is_colocated]))
    for name, group in groups:
        cells = [f"{len(group)}"]
        for column in _COLUMNS.values():
            cells += [f"{value:.3f}" for value in tail([getattr(row, column) for row in group])]
        table.append([name, *cells])
    head = ["s from the signal", "count"]
    head += [f"{column}: {quantile}" for column in _COLUMNS for quantile in ("median", "p95", "max")]
    disturbed, reference = course.disturbed, course.reference
    return [
        f"{len(rows)} x SIG{settings.signal}, one every {settings.every_s:g} s on average, {course.restarts} restarts "
        f"{settings.restart_after_s:g} s later; n={settings.workers}, k={settings.reducers}"
        f"{' and one on every rank host' if settings.colocated else ''}, {settings.transport}, seed {settings.seed}",
        f"{disturbed.steps} steps: {_pace(disturbed)} disturbed, {_pace(reference)} undisturbed, "
        f"goodput {goodput(course):.1%}",
        f"all {settings.workers} ranks and both trainings: the same bits after each of {len(disturbed.counts)} "
        f"slices, sha256 {disturbed.digests[-1][:16]}...; no hang",
        "",
        *markdown(head, table),
    ]


def figures(course: Course) -> dict[str, Any]:
    """Return the report as JSON."""
    rows = felt(course)
    return {
        "steps": course.disturbed.steps,
        "digest": course.disturbed.digests[-1],
        "disturbed_s": course.disturbed.seconds,
        "undisturbed_s": course.reference.seconds,
        "goodput": goodput(course),
        "restarts": course.restarts,
        "strikes_of_the_last": sum(row.others == 0 for row in rows),
        **{name: tail([getattr(row, name) for row in rows])._asdict() for name in _COLUMNS.values()},
        "strikes": [row._asdict() for row in rows],
    }


def _pace(training: Training) -> str:
    return f"{training.seconds:.1f} s ({training.seconds / training.steps * 1e3:.1f} ms per step)"
