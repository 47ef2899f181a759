"""Parse and format numbers of bytes for people. All units are powers of 1024."""

from __future__ import annotations

import re

import click

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SHOWN = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:ib)?)?", re.IGNORECASE)


def size(text: str) -> int:
    """Return the bytes of a string such as 4294967296, 4G or 4GiB. Used as the type of an option.

    Raises:
        click.BadParameter: the string is not a size.
    """
    count = parse_size(text)
    if count is None:
        raise click.BadParameter(
            f"{text!r} is not a size: write bytes, or a number with K, M, G or KiB, MiB, GiB"
        )
    return count


def parse_size(text: str) -> int | None:
    """Return the bytes of a string, or None if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = match.groups()
    factor = 1 << _UNITS[(unit or "").lower()]
    return int(number) * factor if number.isdecimal() else int(float(number) * factor)


def size_text(count: float) -> str:
    """Return a number of bytes with one decimal, in the largest unit that gives at least 1."""
    if count < 1 << 10:
        return f"{count:.0f} B"
    shift, unit = next((shift, unit) for shift, unit in _SHOWN if count >= 1 << shift)
    return f"{count / (1 << shift):.1f} {unit}"
