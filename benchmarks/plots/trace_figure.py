"""A picture of what `reducer trace -o` has written: each rank's collectives, and beside them what its profiler saw.

python -m benchmarks.plots.trace_figure trace.json picture.png
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, png, styled

Event = dict[str, Any]
#: The parts of a collective (timeline/chrome.py), in their order.
PARTS = {
    "handed over": PURPLE,
    "waiting to push": ORANGE,
    "pushing": BLUE,
    "waiting for results": SKY,
    "delivered": GREEN,
}


def timeline(events: Sequence[Event]) -> Figure:
    """Return a line for each collective of each rank, and one for each thread of a profiler; times in ms."""
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    lines: list[tuple[str, list[tuple[float, float, str]]]] = []
    for pid, title in titles.items():
        own = [event for event in events if event["pid"] == pid]
        if any(event.get("cat") == "reduction" for event in own):
            lines += [(f"{title.partition(' (')[0]}, {name}", bars) for name, bars in _collectives(own)]
        else:
            # "python, rank 0 (host), torch.profiler"
            lines += [
                (title.split(", ")[1].partition(" (")[0] + ", torch.profiler", bars) for bars in _threads(own)
            ]
    with styled():
        figure = Figure(figsize=(9.6, 1.0 + 0.22 * len(lines)))
        axes = figure.subplots()
        for number, (_, bars) in enumerate(lines):
            for start, seconds, colour in bars:
                axes.broken_barh([(start, seconds)], (number - 0.4, 0.8), color=colour)
        axes.set_yticks(range(len(lines)), [title for title, _ in lines], fontsize=7)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("ms")
        handles = [Patch(color=colour, label=name) for name, colour in PARTS.items()]
        handles.append(Patch(color=GREY, label="torch's operators"))
        figure.legend(
            handles=handles, loc="outside upper center", ncols=len(handles), fontsize=7, frameon=False
        )
    return figure


def _collectives(events: Sequence[Event]) -> list[tuple[str, list[tuple[float, float, str]]]]:
    """Return the bars of each collective, by its name."""
    open_parts: dict[tuple[str, str], float] = {}
    names: dict[str, str] = {}
    found: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("tid") != 0 or "id" not in event:
            continue
        key = event["id"], event["name"]
        if event["ph"] == "b":
            open_parts[key] = event["ts"]
            names.setdefault(event["id"], event["name"].partition(":")[0])
        elif event["name"] in PARTS:
            start = open_parts[key]
            found[event["id"]].append((start / 1e3, (event["ts"] - start) / 1e3, PARTS[event["name"]]))
    return [(names[one], bars) for one, bars in found.items()]


def _threads(events: Sequence[Event]) -> list[list[tuple[float, float, str]]]:
    """Return the bars of each thread's operators that are in no other."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event.get("cat") == "cpu_op":
            by_thread[event["tid"]].append(event)
    found = []
    for of_thread in by_thread.values():
        bars, end = [], float("-inf")
        for event in sorted(of_thread, key=lambda event: event["ts"]):
            if event["ts"] >= end:
                end = event["ts"] + event["dur"]
                bars.append((event["ts"] / 1e3, event["dur"] / 1e3, GREY))
        found.append(bars)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plots.trace_figure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    events = json.loads(given.trace.read_text(encoding="utf-8"))["traceEvents"]
    given.picture.write_bytes(png(timeline(events)))


if __name__ == "__main__":
    main()
