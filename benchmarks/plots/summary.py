"""The result of a run in one sentence and one figure: how many times as fast as the ring, and where it is slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.method.records import Quartiles, Record
from benchmarks.method.table import size_text
from benchmarks.plots.bandwidth import ALL_REDUCE
from benchmarks.plots.style import GREY, RED, look, styled

#: The data plane that the sentence is about, if it was measured.
_DEFAULT = "tcp"
#: Inches of a comparison, and of title and axis.
_ROW_INCHES, _FRAME_INCHES = 0.21, 1.1


class Comparison(NamedTuple):
    """One of our data planes against the ring."""

    case: str
    contender: str
    ratio: Quartiles


def comparisons(rows: Sequence[Record]) -> list[Comparison]:
    """Return all comparisons with a ring: shaped links first, then by workers and size."""
    ordered = sorted(rows, key=lambda row: (row.network is None, row.workers, row.size_bytes, row.place))
    return [
        Comparison(_case(row), name, contender.ratio)
        for row in ordered
        for name, contender in row.contenders.items()
        if contender.ratio is not None and name != "noop"
    ]


def _case(row: Record) -> str:
    place = "loopback" if row.network is None else f"{row.network.rate_mbit:g} Mbit/s"
    kind = "" if row.what == ALL_REDUCE else f"{row.what}, "
    return f"{kind}{size_text(row.size_bytes)}, {row.shape}, {place}"


def sentence(rows: Sequence[Record]) -> str:
    """Return how many times as fast as the ring the default data plane was, and how often it was slower."""
    names = sorted({comparison.contender for comparison in comparisons(rows)})
    if not names:
        return ""
    name = _DEFAULT if _DEFAULT in names else names[0]
    places = {
        "on shaped links": [row for row in rows if row.network is not None],
        "on loopback": [row for row in rows if row.network is None],
    }
    parts = []
    for place, there in places.items():
        ratios = [each.ratio.median for each in comparisons(there) if each.contender == name]
        if ratios:
            slower = sum(ratio < 1 for ratio in ratios)
            times = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as the ring {place}"
            parts.append(f"{times} (slower in {slower} of {len(ratios)} comparisons)")
    return f"Over {name}, reducers were {', and '.join(parts)}."


def gain(rows: Sequence[Record]) -> Figure | None:
    """Return a point for each comparison, by how many times as fast as the ring it was."""
    compared = comparisons(rows)
    if not compared:
        return None
    cases = list(dict.fromkeys(comparison.case for comparison in compared))
    with styled():
        figure = Figure(figsize=(6.4, _FRAME_INCHES + _ROW_INCHES * len(cases)))
        axes = figure.subplots()
        axes.axvspan(1e-3, 1, color=RED, alpha=0.07, linewidth=0)
        axes.axvline(1, color=GREY, linewidth=1)
        for name in dict.fromkeys(comparison.contender for comparison in compared):
            points = [comparison for comparison in compared if comparison.contender == name]
            medians = [point.ratio.median for point in points]
            below = [point.ratio.median - point.ratio.low for point in points]
            above = [point.ratio.high - point.ratio.median for point in points]
            appearance = look(name)
            axes.errorbar(
                medians,
                [cases.index(point.case) for point in points],
                xerr=[below, above],
                color=appearance.colour,
                marker=appearance.marker,
                linestyle="none",
                label=appearance.label,
            )
        ratios = [value for comparison in compared for value in comparison.ratio]
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
