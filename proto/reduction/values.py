"""Convert dataclasses to and from JSON.

Fields may be numbers, strings, bytes, dataclasses, and lists, tuples and dicts of these.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_hints = functools.cache(typing.get_type_hints)


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass in JSON form, with bytes as hexadecimal digits."""

    def of_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: item.hex() if isinstance(item, bytes) else item for name, item in fields}

    return dataclasses.asdict(value, dict_factory=of_fields)


def from_json(kind: type[T], document: Any) -> T:
    """Return a value of a dataclass from JSON.

    Raises:
        TypeError, ValueError, AttributeError: the document does not have the fields of this kind.
    """
    try:
        return typing.cast("T", _value(kind, document, kind.__name__))
    except OverflowError as error:  # a number too large for a float
        raise ValueError(str(error)) from None


def _value(kind: Any, document: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind):
        kind = typing.cast(Any, kind)
        hints = _hints(kind)
        return kind(**{key: _value(hints.get(key, object), item, key) for key, item in document.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple):  # tuples may have any length
        return origin(_value(arguments[0], item, name) for item in document)
    if origin is dict:
        return {arguments[0](key): _value(arguments[1], item, name) for key, item in document.items()}
    if origin is types.UnionType:  # with None
        return None if document is None else _value(arguments[0], document, name)
    if kind is bytes:
        return bytes.fromhex(document)
    if kind is float and isinstance(document, int) and not isinstance(document, bool):
        return float(document)
    if not isinstance(document, kind):
        raise TypeError(f"{name} is {document!r}")
    return document
