"""When certificates expire. Python's ssl module tells that only of a peer's certificate and of CAs.

A certificate is DER: a tag, a length and a content, nested (RFC 5280, section 4.1):

    Certificate ::= SEQUENCE { tbsCertificate, ... }
    tbsCertificate ::= SEQUENCE { version [0] or absent, serialNumber, signature, issuer, validity, ... }
    validity ::= SEQUENCE { notBefore, notAfter }
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from reduction.errors import ConfigError

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION_TAG = 0xA0
_UTC_TIME_TAG = 0x17


def expires_at(pem: bytes, path: str) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since 1970.

    Args:
        pem: the file's content, with one certificate or more.
        path: of the file, for the error.

    Raises:
        ConfigError: it holds no certificate, or one that cannot be read.
    """
    try:
        times = [
            _not_after(ssl.PEM_cert_to_DER_cert(block)) for block in _blocks(pem.decode("ascii", "replace"))
        ]
        return min(times)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: no date of expiry can be read from its certificates: {error}") from None


def _blocks(text: str) -> Iterator[str]:
    for part in text.split(_BEGIN)[1:]:
        yield f"{_BEGIN}{part.split(_END)[0]}{_END}"


def _not_after(der: bytes) -> float:
    [(_, certificate)] = _items(der)
    fields = _items(_items(certificate)[0][1])
    position = 4 if fields[0][0] == _VERSION_TAG else 3
    _, (tag, when) = _items(fields[position][1])
    text = when.decode("ascii")
    if tag == _UTC_TIME_TAG:  # the year has two digits, and 50 is 1950
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _items(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element in a DER content.

    Raises:
        ValueError: an element is longer than the data.
        IndexError: the data end within a head.
    """
    items = []
    while data:
        tag, length, start = data[0], data[1], 2
        if length & 0x80:  # the length of the length
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        content = data[start : start + length]
        if len(content) != length:
            raise ValueError("it ends within an element")
        items.append((tag, content))
        data = data[start + length :]
    return items
