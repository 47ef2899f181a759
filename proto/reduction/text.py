"""Texts for people: peers' texts made safe for logs and terminals, and counted nouns."""

from __future__ import annotations

import json
from typing import Any


def printable(text: str) -> str:
    r"""Return a string on one line, with an escape such as \x1b in place of each unprintable character.

    These are control characters, line breaks, characters that change the text direction, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return a counted noun such as `1 rank` or `2 ranks`; `plural` is the plural ending."""
    return f"{count} {noun}{'' if count == 1 else plural}"


def load_json(data: str | bytes) -> Any:
    """Return a peer's JSON with all strings made printable.

    Raises:
        ValueError: `data` is not JSON.
        RecursionError: `data` is nested too deeply.
    """
    return _cleaned(json.loads(data))


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_cleaned(one) for one in value]
        case dict():
            return {printable(name): _cleaned(one) for name, one in value.items()}
    return value
