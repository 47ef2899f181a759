"""The figure of a soak: memory of every process over time, from its JSON."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reduction.limits import MIB

from benchmarks.plots.style import PALETTE, panels, styled


def memory(document: dict[str, Any]) -> Figure | None:
    """Return a panel for each transport; None if nothing was sampled."""
    courses = [course for course in document["courses"] if course["seconds"] and course["processes"]]
    if not courses:
        return None
    with styled():
        figure, grid = panels(len(courses), width=5.6)
        for axes, course in zip(grid, courses, strict=True):
            _course(axes, course)
    return figure


def _course(axes: Axes, course: dict[str, Any]) -> None:
    minutes = course["seconds"] / 60
    # These two fifths are compared, see flatness.py.
    for begin in (0.2, 0.8):
        axes.axvspan(begin * minutes, (begin + 0.2) * minutes, color="#eeeeee", zorder=0)
    for index, process in enumerate(course["processes"]):
        times = [seconds / 60 for seconds in process["seconds"]]
        colour = PALETTE[index % len(PALETTE)]
        # Reducers have dotted lines, so that more processes than colours can be told apart.
        style = "-" if process["name"].startswith("rank") else ":"
        rss = [count / MIB for count in process["rss_bytes"]]
        axes.plot(times, rss, style, color=colour, label=process["name"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes")
    axes.set_ylabel("resident memory (MiB = 1048576 bytes)")
    axes.set_title(f"{course['transport']}: {course['collectives']} all-reduces, {course['jobs']} jobs")
    axes.legend(ncols=2, loc="best")
