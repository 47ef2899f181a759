"""The style of figures: plain axes, and colours that colour-blind readers can tell apart.

pyplot is not used, because it has global state.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 144


class Look(NamedTuple):
    """Label, colour and marker of a contender in all figures."""

    label: str
    colour: str
    marker: str


# The palette of Okabe and Ito ("Color Universal Design", 2008). Markers also differ, for greyscale
# prints.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY = "#777777"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)

_LOOKS = {
    "tcp": Look("ours, tcp", BLUE, "o"),
    "grpc": Look("ours, grpc", ORANGE, "s"),
    "ring": Look("ring", GREEN, "^"),
    "noop": Look("no communication", GREY, "D"),
}


def look(contender: str, ring: str = "") -> Look:
    """Return the look of a contender; `ring` names the library behind "ring"."""
    known = _LOOKS.get(contender)
    if known is None:
        return Look(contender, PURPLE, "v")
    return known._replace(label=f"{ring} ring") if contender == "ring" and ring else known


@contextmanager
def styled() -> Iterator[None]:
    """Apply our style to figures that are created in the body."""
    with matplotlib.rc_context(
        {
            "axes.edgecolor": "#999999",
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "font.size": 9,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "legend.fontsize": 8,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            "svg.fonttype": "none",
        }
    ):
        yield


def panels(
    count: int, *, width: float = 4.6, height: float = 3.4, columns_max: int = 2
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels in rows of `columns_max`, and its axes. Sizes are in inches."""
    columns = min(count, columns_max)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for unused in grid[count:]:
        unused.set_axis_off()
    return figure, grid[:count]


def errors(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the distances of the quartiles below and above each median, as `errorbar` expects them."""
    return [
        [middle - low for low, middle, _ in values],
        [high - middle for _, middle, high in values],
    ]


def png(figure: Figure) -> bytes:
    """Return the figure as the content of a PNG file."""
    buffer = io.BytesIO()
    # Without date and version the same numbers produce the same file.
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def legend_below(figure: Figure) -> None:
    """Put one legend for all panels below them."""
    entries = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=2 if len(figure.axes) == 1 else 4
    )
