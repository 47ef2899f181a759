"""Figures of contenders that take turns: how many times as fast as the ring, and the time of a step."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.method.records import Quartiles, Record
from benchmarks.method.table import size_text, value_text
from benchmarks.plots.bandwidth import ALL_REDUCE, contenders
from benchmarks.plots.style import GREY, RED, errors, look, panels, styled

#: Inches of a comparison, and of title and axis.
_ROW_INCHES, _FRAME_INCHES = 0.21, 1.1


def gain(rows: Sequence[Record]) -> Figure | None:
    """Return a point for each comparison with a ring: shaped links first, then by workers and size."""
    ordered = sorted(rows, key=lambda row: (row.network is None, row.workers, row.size_bytes, row.place))
    compared = [
        (_case(row), name, contender.ratio)
        for row in ordered
        for name, contender in row.contenders.items()
        if contender.ratio is not None and name != "noop"
    ]
    if not compared:
        return None
    cases = list(dict.fromkeys(case for case, _, _ in compared))
    with styled():
        figure = Figure(figsize=(6.4, _FRAME_INCHES + _ROW_INCHES * len(cases)))
        axes = figure.subplots()
        axes.axvspan(1e-3, 1, color=RED, alpha=0.07, linewidth=0)
        axes.axvline(1, color=GREY, linewidth=1)
        for contender in dict.fromkeys(name for _, name, _ in compared):
            points = [(cases.index(case), ratio) for case, name, ratio in compared if name == contender]
            appearance = look(contender)
            axes.errorbar(
                [ratio.median for _, ratio in points],
                [at for at, _ in points],
                xerr=errors([ratio for _, ratio in points]),
                color=appearance.colour,
                marker=appearance.marker,
                linestyle="none",
                label=appearance.label,
            )
        ratios = [value for _, _, ratio in compared for value in ratio]
        axes.set_xscale("log")
        axes.set_xlim(min(0.9, min(ratios) * 0.9), max(1.1, max(ratios) * 1.1))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(cases)), cases)
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlabel("times as fast as the ring (shaded: slower)")
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def _case(row: Record) -> str:
    place = "loopback" if row.network is None else f"{row.network.rate_mbit:g} Mbit/s"
    kind = "" if row.what == ALL_REDUCE else f"{row.what}, "
    return f"{kind}{size_text(row.size_bytes)}, {row.shape}, {place}"


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
        turn_ms = Quartiles(*(1e3 * seconds for seconds in row.contenders[name].turn_s))
        axes.bar(at, turn_ms.median, color=appearance.colour, width=0.7, zorder=2)
        axes.errorbar(at, turn_ms.median, errors([turn_ms]), color="#333333", capsize=3, linewidth=1)
        above = (at, turn_ms.high), (0, 3)
        axes.annotate(value_text(turn_ms.median), *above, textcoords="offset points", ha="center", fontsize=8)
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
