"""Tables as text, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0] + "-", *("-" * width + ":" for width in widths[1:])]
    return [_line(head, widths), "|" + "|".join(f"-{cell}" for cell in rule) + "|"] + [
        _line(row, widths) for row in rows
    ]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        row[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
    ]
    return "| " + " | ".join(padded) + " |"
