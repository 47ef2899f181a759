"""Describe for people why gRPC could not connect."""

from __future__ import annotations

import re

#: Text before the reason in gRPC's message. Our message already has the address.
_NOISE = re.compile(
    r"failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?"
    r"(?:Failed to connect to remote host: )?"
)
#: Fragments of gRPC's reasons, and the texts that replace these reasons.
_PLAIN = (
    ("errors resolving", "the host name does not resolve"),
    ("Failed parsing HTTP/2", "something answers there, but it is not a reducer"),
)


def plain(details: str) -> str | None:
    """Return a clearer text for the details of a call's error, or None."""
    return next((text for part, text in _PLAIN if part in details), None)


def shorter(details: str) -> tuple[str, bool]:
    """Return the shortened details of a call's error, and whether the call could not connect."""
    words, is_dial = _NOISE.subn("", details, count=1)
    return words, bool(is_dial)
