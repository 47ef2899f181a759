"""The figure of time_to_loss.py: the loss of each training against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.numerics.convergence_figure import curve
from benchmarks.plots.style import legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.shaped.time_to_loss import Run

__all__ = ["figure", "png"]


def figure(runs: Sequence[Run], target: float) -> Figure:
    """Return the loss against seconds of training, and the target."""
    with styled():
        drawn, (axes,) = panels(1)
        for index, run in enumerate(runs):
            curve(axes, list(accumulate(run.seconds)), run.losses, run.way, index)
        axes.axhline(target, color="grey", linewidth=0.8, linestyle="--", label="target")
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("loss (nats)")
        legend_below(drawn)
    return drawn
