"""Figures from the results, as PNG files. `make bench` draws the figures of results/latest.json.

    python -m benchmarks.plots [FILE.json] [--out DIR]

A figure whose rows were not measured is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.method.experiment import Line
from benchmarks.method.results import RESULTS
from benchmarks.plots.style import png
from benchmarks.plots.suite import figures


def write(source: Path, directory: Path) -> list[Path]:
    """Write the figures of a file of results, and return their paths.

    Raises:
        ValueError: the file has a different format, or is not JSON.
        OSError: a file cannot be read or written.
    """
    drawn = figures(json.loads(source.read_text()))
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in drawn.items():
        path = directory / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)  # a figure from an earlier run with other rows
        else:
            path.write_bytes(png(figure))
            written.append(path)
    return written


def main() -> None:
    line = Line("plots", __doc__)
    line.add_argument("file", nargs="?", type=Path, default=RESULTS / "latest.json", help="(%(default)s)")
    line.add_argument("--out", type=Path, help="folder for the files; by default that of FILE")
    given = line.parse_args()
    try:
        written = write(given.file, given.out or given.file.parent)
    except (ValueError, OSError) as error:
        sys.exit(f"plots: {error}")
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
