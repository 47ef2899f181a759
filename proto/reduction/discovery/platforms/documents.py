"""Reads the documents of platforms: JSON of known shapes, and short errors where the shape is another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reduction.errors import ConfigError

_T = TypeVar("_T")

#: As many characters of a document are shown in an error.
SHOWN_CHARACTERS = 200


class Malformed(Exception):
    """A document has another shape than its platform gives it; the message says where."""


def parse_document(source: str, writer: str, text: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """Return what a function makes of a document that is a JSON object.

    Args:
        source: where the document was found.
        writer: whose form it should have.
        text: the document.
        parse: takes the object, and may raise `Malformed`.

    Raises:
        ConfigError: it is no object, or `parse` has raised.
    """
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise Malformed("it is not an object")
        return parse(document)
    except (ValueError, RecursionError, Malformed) as error:
        shown = " ".join(text[:SHOWN_CHARACTERS].split())
        raise ConfigError(f"{source} is not what {writer} writes ({error}): {shown}") from None


def strings(fields: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of strings, empty if there is none of this key.

    Raises:
        Malformed: it is something else.
    """
    return _list(fields, key, str, "strings")


def objects(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects, empty if there is none of this key.

    Raises:
        Malformed: it is something else.
    """
    return _list(fields, key, dict, "objects")


def _list(fields: Mapping[str, Any], key: str, kind: type[_T], called: str) -> list[_T]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Malformed(f"{key} is not a list of {called}: {value!r}")
    return value
