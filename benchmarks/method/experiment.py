"""Common parts of all tools: command lines, printed tables and result files.

A tool names its shared options and their defaults, adds its own options, and passes its rows on:

    line = Line("shaped.wires", __doc__, workers=4, reducers=None, rate=100.0, rounds=5, json=None)
    line.add_argument("--wires", type=among(WIRES), default=list(WIRES))
    given = line.parse_args()
    with ending_well("wires"):
        rows = measure(given)
    show(given, {"wire": "{wire}", "ms per turn": lambda row: f"{1e3 * row['turn_s']:.0f}"}, rows)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import environment
from benchmarks.lab.cluster import Shape
from benchmarks.lab.traffic import Link, link_of
from benchmarks.method import results
from benchmarks.method.paired import Effort
from benchmarks.method.table import markdown

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: A cell of a row: a function of the row, or a format.
Cell = Callable[[Any], str] | str


def size(text: str) -> int:
    """Return the bytes of 64MiB, 4KiB or 4096."""
    match = re.fullmatch(r"(\d+) ?(|KiB|MiB)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 64MiB, 4KiB or 4096")
    return int(match[1]) * _UNITS[match[2]]


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return an argument type for comma-separated lists."""

    def values(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return values


def among(known: Collection[str], also: str = "(?!)") -> Callable[[str], list[str]]:
    """Return an argument type for comma-separated lists of known names, or names that match a pattern."""

    def names(text: str) -> list[str]:
        found = [part for part in text.split(",") if part]
        if unknown := [name for name in found if name not in known and not re.match(also, name)]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} not among {', '.join(known)}")
        return found

    return names


def parts(text: str) -> tuple[tuple[str, float], ...]:
    """Return the hosts and numbers of r0=0.5,w1=0.25."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    return tuple((host, float(part)) for host, _, part in pairs)


def at_least(least: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """Return an argument type for numbers that are at least `least`."""

    def number(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    return number


#: The options that tools share, without their defaults.
_SHARED: dict[str, dict[str, Any]] = {
    "workers": {"type": at_least(1), "help": "number of ranks (%(default)s)"},
    "reducers": {"type": at_least(0), "help": "number of reducers (%(default)s)"},
    "rate": {"type": at_least(0.001, float), "help": "Mbit/s of every link in each direction (%(default)s)"},
    "unshaped": {"action": "store_true", "help": "run everything on loopback, which needs no root"},
    "device": {"choices": ("cuda", "cpu"), "help": "(%(default)s)"},
    "size": {"type": size, "help": "size of the tensors, such as 64MiB (%(default)s)"},
    "rounds": {"type": at_least(1), "help": "measured turns of each contender (%(default)s)"},
    "warmup": {"type": at_least(0), "help": "initial rounds that do not count (%(default)s)"},
    "seed": {"type": int, "help": "seed of all random choices (%(default)s)"},
    "tiny": {"action": "store_true", "help": "a minimal run, to try the tool itself"},
    "json": {"type": Path, "metavar": "FILE", "help": "also write the results to this file"},
    "out": {"type": Path, "metavar": "FOLDER", "help": "folder for the result files (%(default)s)"},
}


class Line(argparse.ArgumentParser):
    """The command line of a tool.

    Args:
        name: module of the tool, without `benchmarks.`.
        doc: docstring of the tool.
        defaults: defaults of the tool's shared options; `reducers=None` means as many as workers.
    """

    def __init__(self, name: str, doc: str | None, **defaults: Any) -> None:
        super().__init__(
            prog=f"python -m benchmarks.{name}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option, default in defaults.items():
            more = (
                {"help": "by default as many as workers"} if option == "reducers" and default is None else {}
            )
            self.add_argument(f"--{option}", default=default, **(_SHARED[option] | more))
        self._has_reducers = defaults.keys() >= {"workers", "reducers"}

    def parse_args(self, words: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Return the settings."""
        given = super().parse_args(words)
        if self._has_reducers and given.reducers is None:
            given.reducers = given.workers
        return given


def shape_of(given: argparse.Namespace, **more: Any) -> Shape:
    """Return the shape for the shared options; without a rate, or unshaped, it is on loopback."""
    rate_mbit = getattr(given, "rate", None)
    if getattr(given, "unshaped", False):
        rate_mbit = None
    link = None if rate_mbit is None else link_of(rate_mbit)
    device = getattr(given, "device", "cpu")
    return Shape(workers=given.workers, reducers=given.reducers, device=device, link=link, **more)


def effort_of(given: argparse.Namespace, warmup: int = 2) -> Effort:
    """Return how many turns to measure."""
    return Effort(rounds=given.rounds, warmup_rounds=getattr(given, "warmup", warmup))


def table(columns: Mapping[str, Cell], rows: Sequence[Any]) -> list[str]:
    """Return the table of rows; `columns` maps titles to cells."""
    cells = [[_cell(cell, row) for cell in columns.values()] for row in rows]
    return markdown(list(columns), cells)


def _cell(cell: Cell, row: Any) -> str:
    return cell.format_map(row) if isinstance(cell, str) else cell(row)


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings for files, with units in their names, and with the length of the links' queues."""
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(given).items()
        if name not in ("json", "out")
    }
    if "size" in settings:
        settings["size_bytes"] = settings.pop("size")
    if isinstance(rate_mbit := settings.get("rate"), float):
        del settings["rate"]
        settings |= {"rate_mbit": rate_mbit, "queue_ms": Link(rate_mbit=rate_mbit).queue_ms}
    return settings


def show(
    given: argparse.Namespace,
    columns: Mapping[str, Cell],
    rows: Sequence[Mapping[str, Any]],
    title: str = "",
    *,
    path: Path | None = None,
    **more: Any,
) -> None:
    """Print machine and table, and write the rows and more fields to `path` or the command line's file."""
    described = environment.describe()
    print("\n".join([environment.summary(described), *filter(None, [title]), *table(columns, rows)]))
    if (path := path or getattr(given, "json", None)) is not None:
        results.write(path, settings_of(given), rows, described, **more)


def fail(name: str, problems: Sequence[str]) -> None:
    """End the tool if there are problems."""
    if problems:
        sys.exit("\n".join([f"{name}: failed", *problems]))
