"""How a rank says which reducers it was told of, where the ranks have no store to agree on them.

Reducers compare it, so that ranks which look for each other at different reducers fail at once.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import time
from collections.abc import Iterable, Sequence

from reduction.limits import ID_BYTES, NAMED_BYTES_MAX
from reduction.model import NamedReducers

#: Host names are looked up for at most this long, in seconds; after that they stand for themselves.
LOOK_UP_S = 10.0
#: A longer list of addresses is cut, and says how many there are and the hash of all.
_CUT_BYTES = NAMED_BYTES_MAX - 60


def named_reducers(addresses: Sequence[str]) -> NamedReducers:
    """Return what a rank says of its addresses, HOST:PORT. This blocks while host names are looked up."""
    give_up_at = time.monotonic() + LOOK_UP_S
    numeric: set[str] = set()
    for address in addresses:
        numeric.update(_numeric(address) if time.monotonic() < give_up_at else [address])
    return NamedReducers(_text(sorted(set(addresses))), _hash(sorted(numeric)))


def _text(addresses: Sequence[str]) -> str:
    text = ", ".join(addresses)
    if len(text.encode()) <= NAMED_BYTES_MAX and text.isprintable():
        return text
    beginning = "".join(filter(str.isprintable, text)).encode()[:_CUT_BYTES].decode(errors="ignore")
    return f"{beginning}... ({len(addresses)} in all, #{_hash(addresses).hex()[:16]})"


def _numeric(address: str) -> list[str]:
    """Return the IP addresses of HOST:PORT, each with the port; the text itself if there are none."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        return [f"{ipaddress.ip_address(host)} {port}"]
    except ValueError:
        pass
    try:
        answers = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [address]
    return [f"{answer[4][0]} {port}" for answer in answers]


def _hash(texts: Iterable[str]) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=ID_BYTES).digest()
