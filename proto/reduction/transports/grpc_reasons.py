"""Why gRPC could not connect, in words for people."""

from __future__ import annotations

import re

#: What gRPC says before the reason. Our message has the address already.
_NOISE = re.compile(
    r"failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?"
    r"(?:Failed to connect to remote host: )?"
)
#: What gRPC's reason contains, and what the user reads instead of it.
_PLAIN = (
    ("errors resolving", "the host name does not resolve"),
    ("Failed parsing HTTP/2", "something answers there, but it is not a reducer"),
)


def plain(details: str) -> str | None:
    """Return what the details of a call's error mean, if that can be said better; else None."""
    return next((text for part, text in _PLAIN if part in details), None)


def shorter(details: str) -> tuple[str, bool]:
    """Return the details of a call's error, and whether they say why it could not connect."""
    words, is_dial = _NOISE.subn("", details, count=1)
    return words, bool(is_dial)
