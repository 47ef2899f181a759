"""Validity periods of certificates. Python's ssl reports them only for a peer's certificate and for CAs.

A certificate is DER, nested elements with a tag, a length and a content (RFC 5280, section 4.1):

    Certificate ::= SEQUENCE { tbsCertificate, ... }
    tbsCertificate ::= SEQUENCE { version [0] or absent, serialNumber, signature, issuer, validity, ... }
    validity ::= SEQUENCE { notBefore, notAfter }
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from reduction.errors import ConfigError

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION_TAG = 0xA0
_UTC_TIME_TAG = 0x17


class Validity(NamedTuple):
    """Validity period of a certificate, in seconds since 1970."""

    begin: float
    end: float

    def trouble(self, now: float) -> str:
        """Return why the certificate is not valid at a time, with the date; empty if it is valid."""
        if now > self.end:
            return f"expired on {date(self.end)}"
        return f"is not valid before {date(self.begin)}" if now < self.begin else ""


def date(when: float) -> str:
    """Return a time in the format of messages."""
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"


def validities(pem: bytes, path: str) -> list[Validity]:
    """Return the validity of each certificate of a PEM file. The first one is the file owner's.

    Args:
        pem: the file's content, with one or more certificates.
        path: path of the file, for the error.

    Raises:
        ConfigError: the file has no certificate, or one that cannot be read.
    """
    try:
        blocks = _blocks(pem.decode("ascii", "replace"))
        found = [validity(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: cannot read an expiry date from its certificates: {error}") from None
    if not found:
        raise ConfigError(f"{path}: it contains no certificate")
    return found


def _blocks(text: str) -> Iterator[str]:
    for part in text.split(_BEGIN)[1:]:
        yield f"{_BEGIN}{part.split(_END)[0]}{_END}"


def validity(der: bytes) -> Validity:
    """Return the validity of a certificate in DER.

    Raises:
        ValueError: `der` is not a certificate.
        IndexError: `der` is not a certificate.
    """
    [(_, certificate)] = _items(der)
    fields = _items(_items(certificate)[0][1])
    position = 4 if fields[0][0] == _VERSION_TAG else 3
    begin, end = _items(fields[position][1])
    return Validity(_time(*begin), _time(*end))


def _time(tag: int, when: bytes) -> float:
    text = when.decode("ascii")
    if tag == _UTC_TIME_TAG:  # the year has two digits, and 50 is 1950
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _items(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element in DER content.

    Raises:
        ValueError: an element is longer than the data.
        IndexError: the data ends within a header.
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
