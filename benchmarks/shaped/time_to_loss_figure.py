"""The figure of time_to_loss.py: the loss of each training against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from benchmarks.numerics.convergence_figure import curve
from benchmarks.plots.style import legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.shaped.time_to_loss import Run

__all__ = ["figure", "of", "png"]


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


def of(document: dict[str, Any]) -> Figure:
    """Return the figure of a result that has its samples."""
    # Not at the top: these modules import torch, and are what needs this one.
    from benchmarks.numerics.convergence_load import Way
    from benchmarks.shaped.time_to_loss import Run, target_of

    runs = [Run(Way(*run["way"]), run["losses"], run["seconds"]) for run in document["runs"]]
    return figure(runs, target_of(runs[0], document["settings"]["steps"]))
