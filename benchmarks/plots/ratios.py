"""Figures of contenders that take turns: how many times as fast as the ring, and the time of a step."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.method.records import Record
from benchmarks.method.table import size_text, value_text
from benchmarks.plots.bandwidth import ALL_REDUCE, contenders, grouped, largest
from benchmarks.plots.style import GREY, legend_below, panels, styled


def ratio_by_workers(rows: Sequence[Record]) -> Figure | None:
    """Return a panel for loopback and for each kind of links, of the largest size."""
    reduced = [row for row in rows if row.what == ALL_REDUCE and "ring" in row.contenders]
    cases = [largest(case) for case in grouped(reduced, lambda row: (row.network, row.device))]
    if not cases:
        return None
    with styled():
        figure, grid = panels(len(cases))
        for axes, case in zip(grid, cases, strict=True):
            _ratio_panel(axes, case)
        legend_below(figure)
    return figure


def _ratio_panel(axes: Axes, case: Sequence[Record]) -> None:
    for name, appearance in contenders(case).items():
        points = [
            (row.workers, ratio)
            for row in case
            if name in row.contenders and (ratio := row.contenders[name].ratio) is not None
        ]
        if not points:
            continue  # the ring itself has no ratio
        median = [ratio.median for _, ratio in points]
        below = [ratio.median - ratio.low for _, ratio in points]
        above = [ratio.high - ratio.median for _, ratio in points]
        axes.errorbar(
            [workers for workers, _ in points],
            median,
            yerr=[below, above],
            color=appearance.colour,
            marker=appearance.marker,
            capsize=3,
            label=appearance.label,
        )
    axes.axhline(1, color=GREY, linewidth=1)
    counts = sorted({row.workers for row in case})
    is_square = all(row.workers == row.reducers for row in case)
    if case[0].network is not None and is_square:
        gain = [2 * (count - 1) / count for count in counts]
        axes.plot(
            counts, gain, "--", color="#333333", linewidth=1, label="perfect reducers by a perfect ring"
        )
    axes.set_xticks(counts, [_shape_tick(case, count) for count in counts])
    axes.margins(x=0.15)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers n and reducers k")
    axes.set_ylabel(f"{case[0].ring} ring's time / ours\n(above 1 we are faster)")
    axes.set_title(f"{case[0].place}\n{size_text(case[0].size_bytes)} (MiB = 1024 KiB)")


def _shape_tick(case: Sequence[Record], workers: int) -> str:
    reducers = sorted({row.reducers for row in case if row.workers == workers})
    return f"n={workers}\nk={', '.join(map(str, reducers))}"


def step_times(rows: Sequence[Record]) -> Figure | None:
    """Return a panel with a bar for each contender for each kind of step."""
    steps = [row for row in rows if row.what != ALL_REDUCE]
    if not steps:
        return None
    with styled():
        figure, grid = panels(len(steps), width=3.7, height=3.1, columns_max=3)
        for axes, row in zip(grid, steps, strict=True):
            _step_panel(axes, row)
    return figure


def _step_panel(axes: Axes, row: Record) -> None:
    for at, (name, appearance) in enumerate(contenders([row]).items()):
        turn_ms = [1e3 * seconds for seconds in row.contenders[name].turn_s]
        low, median, high = turn_ms
        axes.bar(at, median, color=appearance.colour, width=0.7, zorder=2)
        axes.errorbar(at, median, [[median - low], [high - median]], color="#333333", capsize=3, linewidth=1)
        axes.annotate(
            value_text(median), (at, high), (0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    looks = contenders([row]).values()
    names = [appearance.label.replace(" ", "\n", 1) for appearance in looks]
    axes.set_xticks(range(len(looks)), names, multialignment="center", fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time per step (ms)")
    axes.set_title(f"{row.what}, {size_text(row.size_bytes)} of gradients\n{row.shape}, {_short_place(row)}")


def _short_place(row: Record) -> str:
    return "loopback" if row.network is None else f"{row.network.rate_mbit:g} Mbit/s links"
