"""Markdown tables, and the numbers in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from reduction.limits import KIB, MIB

Rows = Sequence[Sequence[str]]


class Quartiles(NamedTuple):
    """The quartiles of one quantity over the turns, or over the pairs of turns."""

    low: float
    median: float
    high: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of one or more values."""
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


class Tail(NamedTuple):
    """Median, 95th percentile and maximum of some seconds."""

    median: float
    p95: float
    maximum: float


def tail(seconds: Sequence[float]) -> Tail:
    """Return median, 95th percentile and maximum, each an observed value (nearest rank)."""
    ordered = sorted(seconds)
    return Tail(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95, 1.0)))


def without_empty_columns(head: Sequence[str], rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Return head and rows without columns that are empty in every row."""
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


def markdown(head: Sequence[str], rows: Rows) -> list[str]:
    """Return the lines of a table, with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0] + "-", *("-" * width + ":" for width in widths[1:])]
    return [_line(head, widths), "|" + "|".join(f"-{cell}" for cell in rule) + "|"] + [
        _line(row, widths) for row in rows
    ]


def spread(value: Sequence[float] | None, digits: str = ".2f") -> str:
    """Return median and quartiles, or an empty string if they are not known."""
    if value is None:
        return ""
    low, median, high = value
    return f"{median:{digits}} ({low:{digits}}-{high:{digits}})"


def size_text(count: float) -> str:
    """Return a number of bytes in KiB or MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{value_text(count / unit)} {name}"
    return f"{count:.0f} B"


def value_text(value: float) -> str:
    """Return a number with three digits, or all digits before the point if there are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        row[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
    ]
    return "| " + " | ".join(padded) + " |"
