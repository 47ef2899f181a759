"""The figure of convergence.py: losses against steps and against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reduction.limits import MIB

from benchmarks.plots.style import PALETTE, legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.numerics.convergence import Trained
    from benchmarks.numerics.convergence_load import Way

__all__ = ["curve", "figure", "png"]

#: Every point is the mean over this share of all steps, those up to the point.
_WINDOW = 0.05


def figure(trained: Sequence[Trained]) -> Figure:
    """Return the loss against steps, and against bytes."""
    with styled():
        drawn, (by_steps, by_bytes) = panels(2)
        for index, training in enumerate(trained):
            curve(by_steps, range(1, len(training.losses) + 1), training.losses, training.way, index)
            mib = [count / MIB for count in training.nbytes]
            curve(by_bytes, mib, training.losses, training.way, index)
        by_steps.set_xlabel("steps")
        by_bytes.set_xlabel("gradients sent and received by one rank (MiB = 1048576 bytes)")
        by_bytes.set_xscale("log")
        for axes in (by_steps, by_bytes):
            axes.set_ylabel("loss (nats)")
        legend_below(drawn)
    return drawn


def curve(axes: Axes, xs: Sequence[float], losses: Sequence[float], way: Way, index: int) -> None:
    """Draw the smoothed loss of the `index`-th training."""
    window = max(1, round(_WINDOW * len(losses)))
    sums = [sum(losses[max(0, end - window) : end]) for end in range(1, len(losses) + 1)]
    smooth = [total / min(end, window) for end, total in enumerate(sums, 1)]
    label = way.name if way.wire is not None else f"torch, {way.name}"
    style = "-" if way.wire is not None else ":"
    axes.plot(xs, smooth, style, color=PALETTE[index % len(PALETTE)], label=label)
