"""The figure of convergence.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.style import MIB, PALETTE, legend_below, panels, png, styled

if TYPE_CHECKING:
    from benchmarks.convergence import Trained

__all__ = ["figure", "png"]

#: Every point is the mean of this share of the steps up to it.
_WINDOW = 0.05


def figure(found: Sequence[Trained]) -> Figure:
    """Return the loss against steps, and against bytes."""
    with styled():
        drawn, (by_steps, by_bytes) = panels(2)
        for index, one in enumerate(found):
            window = max(1, round(_WINDOW * len(one.losses)))
            sums = [sum(one.losses[max(0, end - window) : end]) for end in range(1, len(one.losses) + 1)]
            smooth = [total / min(end, window) for end, total in enumerate(sums, 1)]
            style = ":" if one.way.wire is None else "-"
            colour = PALETTE[index % len(PALETTE)]
            label = one.way.name if one.way.wire is not None else f"torch, {one.way.name}"
            by_steps.plot(range(1, len(smooth) + 1), smooth, style, color=colour, label=label)
            by_bytes.plot([count / MIB for count in one.nbytes], smooth, style, color=colour, label=label)
        by_steps.set_xlabel("steps")
        by_bytes.set_xlabel("gradients sent and received by one rank (MiB = 1048576 bytes)")
        by_bytes.set_xscale("log")
        for axes in (by_steps, by_bytes):
            axes.set_ylabel("loss (nats)")
        legend_below(drawn)
    return drawn
