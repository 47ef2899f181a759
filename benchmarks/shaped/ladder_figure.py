"""The figure of ladder.py, from its rows: seconds per epoch on each rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.plots.style import BLUE, GREEN, GREY, errors, styled

#: Colours by the rungs' use of the network: none, Gloo, or reducers.
_COLOURS = {"one": GREY, "dataparallel": GREY, "reducers": BLUE, "hsdp": BLUE}


def epochs(rows: Sequence[dict[str, Any]]) -> Figure:
    """Return a bar with quartiles for each rung; rungs with reducers are blue, those with Gloo green."""
    with styled():
        figure = Figure(figsize=(6.4, 0.9 + 0.32 * len(rows)))
        axes = figure.subplots()
        seconds = [row["epoch_s"] for row in rows]
        median = [middle for _, middle, _ in seconds]
        names = [row["rung"] for row in rows]
        bars = axes.barh(
            names, median, xerr=errors(seconds), color=[_COLOURS.get(name, GREEN) for name in names]
        )
        axes.bar_label(bars, [f"{middle:.1f}" for middle in median], padding=4)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds per epoch (blue: reducers, green: Gloo, grey: no network)")
    return figure
