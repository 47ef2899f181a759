"""How a rank reports which reducers it was given, where the ranks have no store to agree on them.

Reducers compare the number of addresses, so ranks that were given more or fewer fail immediately.
"""

from __future__ import annotations

from collections.abc import Sequence

from reduction.limits import NAMED_BYTES_MAX
from reduction.model import NamedReducers

#: A longer list of addresses is truncated, with the total number at its end.
_CUT_BYTES = NAMED_BYTES_MAX - 30


def named_reducers(addresses: Sequence[str]) -> NamedReducers:
    """Return a rank's statement of its addresses, HOST:PORT."""
    different = sorted(set(addresses))
    return NamedReducers(_text(different), len(different))


def _text(addresses: Sequence[str]) -> str:
    text = ", ".join(addresses)
    if len(text.encode()) <= NAMED_BYTES_MAX and text.isprintable():
        return text
    beginning = "".join(filter(str.isprintable, text)).encode()[:_CUT_BYTES].decode(errors="ignore")
    return f"{beginning}... ({len(addresses)} in all)"
