"""The figure of the GIL benchmark, from its JSON."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.method.table import size_text, value_text
from benchmarks.plots.style import log_scale, look, panels, styled


def gil(document: dict[str, Any]) -> Figure | None:
    """Return a panel with the speed of the loop and one with that of the collectives; None without rows."""
    rows = document["rows"]
    if not rows:
        return None
    with styled():
        figure, (loop, bandwidth) = panels(2)
        _bars(loop, rows, "loop_speed", 100)
        loop.axhline(100, color="#333333", linewidth=1, linestyle="--")
        loop.set_ylabel("speed of the Python loop (%)")
        loop.set_title("with all-reduces in flight;\n100 %: nothing in flight")
        _bars(bandwidth, rows, "waiting_gb_s", 1, shift=-0.2, alpha=0.4)
        _bars(bandwidth, rows, "spinning_gb_s", 1, shift=0.2)
        log_scale(bandwidth)
        bandwidth.set_ylabel("algbw (GB/s = 1e9 bytes/s)")
        size = size_text(document["settings"]["size_bytes"])
        bandwidth.set_title(f"{size} (MiB = 1024 KiB) tensors\npale: main thread waits; full: it computes")
    return figure


def _bars(
    axes: Axes,
    rows: list[dict[str, Any]],
    quantity: str,
    unit: float,
    *,
    shift: float = 0.0,
    alpha: float = 1.0,
) -> None:
    looks = [look(row["contender"], "Gloo") for row in rows]
    for at, (row, appearance) in enumerate(zip(rows, looks, strict=True)):
        low, median, high = (unit * value for value in row[quantity])
        width = 0.38 if shift else 0.6
        axes.bar(at + shift, median, width, color=appearance.colour, alpha=alpha, zorder=2)
        axes.errorbar(at + shift, median, [[median - low], [high - median]], color="#333333", capsize=3)
        axes.annotate(
            value_text(median),
            (at + shift, high),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_xticks(range(len(rows)), [appearance.label for appearance in looks])
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
