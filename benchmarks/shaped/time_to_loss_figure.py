"""The figure of time_to_loss.py: the loss of each training against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.plots.style import PALETTE, legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.numerics.convergence import Run

__all__ = ["figure", "of", "png"]

#: Every point is the mean over this share of all steps, ending at the point.
_WINDOW = 0.05


def figure(runs: Sequence[Run], target: float) -> Figure:
    """Return the loss against seconds of training, and the target."""
    with styled():
        drawn, (axes,) = panels(1)
        for index, run in enumerate(runs):
            _curve(axes, run, PALETTE[index % len(PALETTE)])
        axes.axhline(target, color="grey", linewidth=0.8, linestyle="--", label="target")
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("loss (nats)")
        legend_below(drawn)
    return drawn


def _curve(axes: Axes, run: Run, colour: str) -> None:
    """Draw the smoothed loss of a training."""
    window = max(1, round(_WINDOW * len(run.losses)))
    sums = [sum(run.losses[max(0, end - window) : end]) for end in range(1, len(run.losses) + 1)]
    smooth = [total / min(end, window) for end, total in enumerate(sums, 1)]
    is_ours = run.way.wire is not None
    label = run.way.name if is_ours else f"torch, {run.way.name}"
    axes.plot(list(accumulate(run.seconds)), smooth, "-" if is_ours else ":", color=colour, label=label)


def of(document: dict[str, Any]) -> Figure:
    """Return the figure of a result with samples."""
    # Not imported at the top, because these modules import torch, and one of them imports this module.
    from benchmarks.numerics.convergence import Run
    from benchmarks.numerics.convergence_load import Way
    from benchmarks.shaped.time_to_loss import target_of

    runs = [Run(Way(*run["way"]), run["losses"], run["seconds"]) for run in document["runs"]]
    return figure(runs, target_of(runs[0], document["settings"]["steps"]))
