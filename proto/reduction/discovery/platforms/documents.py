"""Reads the documents of platforms: JSON of known shapes, and short errors where the shape is another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from reduction.errors import ConfigError

_T = TypeVar("_T")

#: As many characters of a document are shown in an error.
SHOWN_CHARACTERS = 200


class Malformed(Exception):
    """A document has another shape than its platform gives it; the message says where."""


def parse_object(source: str, writer: str, text: str) -> dict[str, Any]:
    """Return a document that is a JSON object.

    Args:
        source: where it was found.
        writer: whose form it should have.
        text: the document.

    Raises:
        ConfigError: it is none.
    """
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise Malformed("it is not an object")
    except (ValueError, RecursionError, Malformed) as error:
        raise malformed(source, writer, text, str(error)) from None
    return document


def malformed(source: str, writer: str, text: str, reason: str) -> ConfigError:
    """Return the error of a document."""
    shown = " ".join(text[:SHOWN_CHARACTERS].split())
    return ConfigError(f"{source} is not what {writer} writes ({reason}): {shown}")


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
