"""A table of settings: a frozen dataclass in which every field is one row.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        timeout_s: float = setting(600.0, Seconds(), "Seconds from the first push to the error.")

The field's name is the setting's, its type is that of a parsed value, and `setting`
adds the default, the kind and the documentation. All other code gets the settings from `rows`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from worker_plugin.settings.environment import variable
from worker_plugin.settings.kinds import Kind

#: Width of the lines that `document` writes.
COLUMNS = 100
#: The argument that `document` replaces with all settings.
_ALL_SETTINGS = re.compile(r"^    \*\*settings: .*$", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    name: str
    default: Any
    kind: Kind[Any]
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable of this setting."""
        return variable(self.name)

    @property
    def default_text(self) -> str:
        """The default as documents write it."""
        if self.default is None:
            return "none"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def setting(default: T, kind: Kind[T], doc: str) -> T:
    """Return a field for the table's dataclass, as `dataclasses.field` does."""
    return field(default=default, metadata={"kind": kind, "doc": doc})


@cache
def rows(config: type) -> tuple[Row, ...]:
    """Return the rows of a table."""
    return tuple(Row(one.name, one.default, **one.metadata) for one in fields(config))


def document(docstring: str | None, rows: Iterable[Row]) -> str:
    """Return a docstring whose Args section lists the settings in place of `**settings`."""
    entries = [
        textwrap.fill(
            f"{row.name}: {row.doc} Default: {row.default_text}.",
            COLUMNS,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        for row in rows
    ]
    return _ALL_SETTINGS.sub(lambda _: "\n".join(entries), inspect.cleandoc(docstring or ""))
