"""Figures from the results, as PNG files. `make bench` draws those of results/latest.json.

    python -m benchmarks.plots [FILE.json] [--out DIR]

A figure whose rows were not measured is left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.method.records import FormatUnknown, load, records
from benchmarks.method.results import RESULTS
from benchmarks.plots import bandwidth, ratios
from benchmarks.plots.style import png

#: By the names of the files, functions of all rows; None if there is nothing to draw.
FIGURES = {
    "result": ratios.gain,
    "algbw-links-by-size": bandwidth.by_size_on_links,
    "algbw-links-by-workers": bandwidth.by_workers,
    "steps": ratios.step_times,
    "algbw-loopback-by-size": bandwidth.by_size_on_loopback,
}


def write(source: Path, directory: Path) -> list[Path]:
    """Write the figures of a file of results, and return their paths.

    Raises:
        FormatUnknown: the file has another format.
        OSError: a file cannot be read or written.
    """
    rows = records(load(source))
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, draw in FIGURES.items():
        path = directory / f"{name}.png"
        if (figure := draw(rows)) is None:
            path.unlink(missing_ok=True)  # a figure of an earlier run with other rows
        else:
            path.write_bytes(png(figure))
            written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__.splitlines()[0])
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
