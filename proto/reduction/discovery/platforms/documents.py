"""Read the JSON documents of platforms, with short errors where their shape is unexpected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reduction.errors import ConfigError

_T = TypeVar("_T")

#: Number of characters of a document that are shown in an error.
SHOWN_CHARACTERS = 200


class Malformed(Exception):
    """A document does not have the shape that its platform writes; the message says where."""


def parse_document(source: str, writer: str, text: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """Parse a document as a JSON object, and return the result of a function of it.

    Args:
        source: where the document was found.
        writer: the platform that should have written it.
        text: the document.
        parse: takes the object, and may raise `Malformed`.

    Raises:
        ConfigError: the document is not an object, or `parse` raised `Malformed`.
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
    """Return the list of strings at a key, or an empty list if the key is missing.

    Raises:
        Malformed: the value is not a list of strings.
    """
    return _list(fields, key, str, "strings")


def objects(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects at a key, or an empty list if the key is missing.

    Raises:
        Malformed: the value is not a list of objects.
    """
    return _list(fields, key, dict, "objects")


def _list(fields: Mapping[str, Any], key: str, kind: type[_T], called: str) -> list[_T]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Malformed(f"{key} is not a list of {called}: {value!r}")
    return value
