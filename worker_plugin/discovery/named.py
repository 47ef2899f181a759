"""How a rank says which reducers it was told of, where the ranks have no store to agree on them.

Reducers compare how many they are, so that ranks which were told of more or fewer fail at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from reduction.limits import NAMED_BYTES_MAX
from reduction.model import NamedReducers

#: A longer list of addresses is cut, and says how many there are.
_CUT_BYTES = NAMED_BYTES_MAX - 30


def named_reducers(addresses: Sequence[str]) -> NamedReducers:
    """Return what a rank says of its addresses, HOST:PORT."""
    different = sorted(set(addresses))
    return NamedReducers(_text(different), len(different))


def _text(addresses: Sequence[str]) -> str:
    text = ", ".join(addresses)
    if len(text.encode()) <= NAMED_BYTES_MAX and text.isprintable():
        return text
    beginning = "".join(filter(str.isprintable, text)).encode()[:_CUT_BYTES].decode(errors="ignore")
    return f"{beginning}... ({len(addresses)} in all)"
