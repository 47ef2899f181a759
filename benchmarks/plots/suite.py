"""Figures of the suite's rows: bandwidth by number of workers, with its bounds, and the time of a step.

With reducers, every byte crosses a worker's link once in each direction, and reducers share the
sums evenly, so algbw <= B min(1, k/n) on links of rate B. A ring sends each byte 2(n-1)/n times, so
algbw <= B n/(2(n-1)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.lab.traffic import queue_ms
from benchmarks.method.report import FORMAT
from benchmarks.method.table import Quartiles, quartiles, size_text, value_text
from benchmarks.plots.style import GREEN, GREY, errors, legend_below, look, panels, styled

#: One of the rows that `benchmarks.method.report` describes.
Row = Mapping[str, Any]


def figures(document: Mapping[str, Any]) -> dict[str, Figure | None]:
    """Return the figures of a results file by name; None where a figure has no rows.

    Raises:
        ValueError: the file does not have the format that this version reads.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"the format is {document.get('format')!r}, this version reads {FORMAT}")
    rows = document["rows"]
    return {"algbw-links-by-workers": by_workers(rows), "steps": step_times(rows)}


def by_workers(rows: Sequence[Row]) -> Figure | None:
    """Return a panel for each kind of shaped links: the largest size, with as many reducers as workers."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        is_square = row["what"] == "all-reduce" and row["workers"] == row["reducers"]
        if is_square and row["network"] != "loopback":
            groups.setdefault((_links(row), row["device"]), []).append(row)
    cases = {place: case for (place, _), group in groups.items() if len(case := _largest(group)) > 1}
    if not cases:
        return None
    with styled():
        figure, grid = panels(len(cases))
        for axes, (place, case) in zip(grid, cases.items(), strict=True):
            _lines(axes, case)
            _bounds(axes, case)
            axes.set_xticks([row["workers"] for row in case])
            axes.set_xlabel("workers n, with k = n reducers")
            axes.set_ylim(bottom=0)
            axes.set_ylabel("algbw (Mbit/s = 1e6 bits/s)")
            axes.set_title(f"{place}\n{size_text(case[0]['size_bytes'])} (MiB = 1024 KiB)")
        legend_below(figure)
    return figure


def _links(row: Row) -> str:
    """Return the description of a row's links for a title."""
    network = row["network"]
    burst = f"{network['burst_bytes'] / 1024:g} KiB bursts"
    return f"{network['rate_mbit']:g} Mbit/s links, {queue_ms(network):.3g} ms queues, {burst}"


def _largest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the largest size, ordered by number of workers."""
    most = max(row["size_bytes"] for row in rows)
    return sorted((row for row in rows if row["size_bytes"] == most), key=lambda row: row["workers"])


def _lines(axes: Axes, case: Sequence[Row]) -> None:
    """Draw a line for each contender with a band between the quartiles."""
    for name in dict.fromkeys(name for row in case for name in row["contenders"]):
        ran = [row for row in case if name in row["contenders"]]
        at, appearance = [row["workers"] for row in ran], look(name, ran[0]["ring"])
        low, middle, high = zip(
            *(
                quartiles([8e-6 * row["size_bytes"] / turn for turn in row["contenders"][name]["turns"]])
                for row in ran
            ),
            strict=True,
        )
        axes.fill_between(at, low, high, color=appearance.colour, alpha=0.18, linewidth=0)
        axes.plot(at, middle, color=appearance.colour, marker=appearance.marker, label=appearance.label)


def _bounds(axes: Axes, case: Sequence[Row]) -> None:
    at, rate = [row["workers"] for row in case], case[0]["network"]["rate_mbit"]
    ring = [rate * n / (2 * (n - 1)) for n in at if n > 1]
    axes.plot(at, [rate] * len(at), "--", color="#333333", linewidth=1, label="bound of reducers, B")
    if len(ring) == len(at):
        axes.plot(at, ring, "-.", color=GREEN, linewidth=1, label="bound of a ring, B n/(2(n-1))")
    if goodputs := [row["network"]["goodput_mbit"] for row in case if row["network"]["goodput_mbit"]]:
        axes.axhline(max(goodputs), color=GREY, linestyle=":", linewidth=1.4, label="iperf3, one TCP stream")


def step_times(rows: Sequence[Row]) -> Figure | None:
    """Return a panel with a bar for each contender for each kind of step."""
    steps = [row for row in rows if row["what"] != "all-reduce"]
    if not steps:
        return None
    with styled():
        figure, grid = panels(len(steps), width=3.7, height=3.1, columns_max=3)
        for axes, row in zip(grid, steps, strict=True):
            _step_panel(axes, row)
    return figure


def _step_panel(axes: Axes, row: Row) -> None:
    looks = {name: look(name, row["ring"]) for name in row["contenders"]}
    for at, (name, appearance) in enumerate(looks.items()):
        turn_ms = Quartiles(*(1e3 * seconds for seconds in quartiles(row["contenders"][name]["turns"])))
        axes.bar(at, turn_ms.median, color=appearance.colour, width=0.7, zorder=2)
        axes.errorbar(at, turn_ms.median, errors([turn_ms]), color="#333333", capsize=3, linewidth=1)
        above = (at, turn_ms.high), (0, 3)
        axes.annotate(value_text(turn_ms.median), *above, textcoords="offset points", ha="center", fontsize=8)
    names = [appearance.label.replace(" ", "\n", 1) for appearance in looks.values()]
    axes.set_xticks(range(len(looks)), names, multialignment="center", fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time per step (ms)")
    size, on = size_text(row["size_bytes"]), "" if row["device"] == "cpu" else f", {row['device']}"
    place = "loopback" if row["network"] == "loopback" else f"{row['network']['rate_mbit']:g} Mbit/s links"
    axes.set_title(
        f"{row['what']}, {size} of gradients\nn={row['workers']}, k={row['reducers']}{on}, {place}"
    )
