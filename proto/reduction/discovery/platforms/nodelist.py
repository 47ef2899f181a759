"""Expand Slurm's node lists, such as `gpu[01-02,7],cpu3`, as `scontrol show hostnames` does.

Containers often lack `scontrol`, and the libraries on PyPI have licences that we cannot ship.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from reduction.errors import ConfigError
from reduction.limits import ADDRESSES_MAX

_ELEMENT = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]*\])+")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def hostnames(text: str) -> tuple[str, ...]:
    """Return the names of the nodes, in the order of the list.

    Raises:
        ConfigError: the text is not a node list, or has too many nodes.
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        element = _ELEMENT.match(text, position)
        if element is None:
            raise ConfigError(
                f"node list {text!r}: {text[position:]!r} is not of the form NAME or NAME[1-3,5]"
            )
        names += _expanded(element[0], text, ADDRESSES_MAX - len(names))
        position = element.end() + 1
        if text[element.end() : position] not in ("", ","):
            raise ConfigError(
                f"node list {text!r}: {text[element.end() :]!r} is not of the form NAME or NAME[1-3,5]"
            )
    return tuple(names)


def _expanded(element: str, text: str, room: int) -> list[str]:
    parts = re.split(r"\[(.*?)\]", element)  # text, ranges, text, ranges, ..., text
    choices: list[Sequence[str]] = []
    count = 1
    for index, part in enumerate(parts):
        numbers = [part] if index % 2 == 0 else _numbers(part, text, room)
        count *= len(numbers)
        if count > room:
            raise ConfigError(f"node list {text!r} has more than {ADDRESSES_MAX} nodes")
        choices.append(numbers)
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _numbers(ranges: str, text: str, room: int) -> list[str]:
    """Return the numbers of `01-03,7`. The first number of a range sets the width of all."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if match is None or last < first:
            raise ConfigError(f"node list {text!r}: {part!r} is neither a number nor a range such as 1-3")
        if last - first >= room - len(numbers):
            raise ConfigError(f"node list {text!r} has more than {ADDRESSES_MAX} nodes")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers
