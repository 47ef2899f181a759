"""The figure of accuracy.py: mean errors against the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.numerics.accuracy_sums import HOOKS, WIRES
from benchmarks.plots.style import PALETTE, legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.numerics.accuracy import Row

__all__ = ["figure", "png"]


def figure(rows: Sequence[Row]) -> Figure:
    """Return a row of two panels for each source of gradients."""
    sources = list(dict.fromkeys(row.data for row in rows))
    with styled():
        drawn, grid = panels(2 * len(sources), height=3.0)
        for index, data in enumerate(sources):
            of_source = [row for row in rows if row.data == data]
            _panel(grid[2 * index], of_source, "sent")
            grid[2 * index].set_title(f"{data}: against what was sent")
            _panel(grid[2 * index + 1], of_source, "gradients")
            grid[2 * index + 1].set_title(f"{data}: against the gradients")
        legend_below(drawn)
    return drawn


def _panel(axes: Axes, rows: Sequence[Row], against: str) -> None:
    for wire, colour in zip(WIRES, PALETTE, strict=True):
        of_wire = [row for row in rows if row.wire == wire]
        workers = [row.workers for row in of_wire]
        axes.plot(
            workers,
            [getattr(row, against).mean for row in of_wire],
            "o-",
            color=colour,
            label=f"ours, {wire}",
        )
        if wire in HOOKS:
            torchs = [getattr(row, f"torch_{against}").mean for row in of_wire]
            axes.plot(workers, torchs, "^:", color=colour, label=f"torch, {wire}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row.workers for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("workers n")
    axes.set_ylabel("mean error / largest average")
