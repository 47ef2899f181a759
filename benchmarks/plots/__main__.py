"""Figures and a page from the results: PNG files, and report.html, which contains all of them.

    python -m benchmarks.plots [FILE.json] [--out DIR]

`make bench` does the same for results/latest.json. The page also has the results of the other tools
that lie beside that file: the GIL benchmark, the soak, `accuracy`, `convergence` and
`time_to_loss`. A figure whose rows were not measured is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from benchmarks.gil import figure as gil_figure
from benchmarks.method.records import FormatUnknown, Record, load, records
from benchmarks.plots import bandwidth as figures_bandwidth
from benchmarks.plots import ratios as figures_paired
from benchmarks.plots import summary
from benchmarks.plots.page import Picture
from benchmarks.plots.report_page import page
from benchmarks.plots.style import png
from benchmarks.soak import figure as soak_figure

RESULTS = Path(__file__).parents[1] / "results"


class Plan(NamedTuple):
    """A figure that is drawn if its rows were measured."""

    #: Name of the file, without its ending.
    name: str
    caption: str
    draw: Callable[[Sequence[Record]], Figure | None]


FIGURES = (
    # The first figure stands beside the result, at the top of the page.
    Plan(
        "result",
        "How many times as fast as the ring each comparison was, in neighbouring turns: median, and quartiles as "
        "bars. The horizontal axis is logarithmic.",
        summary.gain,
    ),
    Plan(
        "algbw-links-by-size",
        "Shaped links: algbw by size of the tensor, both axes logarithmic. Bands are between the quartiles of the "
        "turns; the ring is overtaken where its line is crossed.",
        figures_bandwidth.by_size_on_links,
    ),
    Plan(
        "algbw-links-by-workers",
        "Shaped links: algbw by the number of workers, with as many reducers. Reducers could keep the rate of the "
        "links B whatever n is; a ring cannot.",
        figures_bandwidth.by_workers,
    ),
    Plan(
        "ratio-by-workers",
        "How much faster than the ring in neighbouring turns: median, and quartiles as bars, for the largest size.",
        figures_paired.ratio_by_workers,
    ),
    Plan(
        "steps",
        "Time of a training step: median turn, and quartiles as bars. Without communication is the floor.",
        figures_paired.step_times,
    ),
    Plan(
        "algbw-loopback-by-size",
        "Loopback: algbw by size of the tensor, both axes logarithmic. The CPU is what is waited for.",
        figures_bandwidth.by_size_on_loopback,
    ),
)
GIL_CAPTION = (
    "Left: what the main thread loses to all-reduces in flight. Right: what they lose when it computes."
)
SOAK_CAPTION = "Resident memory of every process over the time of the soak; the grey fifths are compared."
#: Captions of the figures that other tools have drawn, by the pattern of their files' names.
DRAWN = {
    "accuracy.png": "The error of averages against a sum in float64: ours, and torch's compression hooks over Gloo.",
    "convergence-*.png": "The loss of a training against steps, and against bytes of gradients.",
    "time-to-loss-*.png": "The loss of a training on shaped links against time, computing included.",
}


def write(source: Path, directory: Path) -> list[Path]:
    """Write the figures and the page of a file of results, and return their paths.

    Raises:
        FormatUnknown: a file has another format.
        OSError: a file cannot be read or written.
    """
    document = load(source)
    rows = records(document)
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def keep(name: str, caption: str, figure: Figure | None) -> list[Picture]:
        path = directory / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # a figure of an earlier run with other rows
            return []
        path.write_bytes(content := png(figure))
        written.append(path)
        return [Picture(content, caption)]

    pictures = [picture for plan in FIGURES for picture in keep(plan.name, plan.caption, plan.draw(rows))]
    gil, soak = _beside(source, "gil.json"), _beside(source, "soak.json")
    with_gil = None if gil is None else (gil, keep("gil", GIL_CAPTION, gil_figure.gil(gil)))
    with_soak = None if soak is None else (soak, keep("soak", SOAK_CAPTION, soak_figure.memory(soak)))
    path = directory / "report.html"
    wires = [
        Picture(drawn.read_bytes(), f"{drawn.stem}: {caption}")
        for pattern, caption in DRAWN.items()
        for drawn in sorted(source.parent.glob(pattern))
    ]
    path.write_text(page(document, rows, pictures, wires, with_gil, with_soak))
    return [*written, path]


def _beside(source: Path, name: str) -> dict[str, Any] | None:
    path = source.with_name(name)
    if not path.exists():
        return None
    document = load(path)
    if document.get("format") != 1:
        raise FormatUnknown(f"{path}: the format is {document.get('format')!r}, this version reads 1")
    return document


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description="Draw figures and write a page from benchmark results."
    )
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS / "latest.json", help="(%(default)s)")
    parser.add_argument("--out", type=Path, help="folder for the files; that of FILE if not given")
    given = parser.parse_args()
    try:
        written = write(given.file, given.out or given.file.parent)
    except (FormatUnknown, OSError) as error:
        sys.exit(f"plots: {error}")
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
