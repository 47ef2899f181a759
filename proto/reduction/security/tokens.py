"""Shared tokens: the file that both sides read, the metadata that carries a token, and the comparison.

The file has a line `JOB:TOKEN` per job, or `*:TOKEN` for every job without its own line. A job's name may contain
colons but a token may not, so the last colon counts. Spaces around both are ignored, and so are empty lines and
lines that begin with `#`. A job's line also applies to its rails (`rails.py`), unless a rail has its own.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import NoReturn

from reduction.errors import ConfigError
from reduction.limits import TOKEN_CHARS_MAX
from reduction.rails import job_of
from reduction.security.tls import read_private

log = logging.getLogger(__name__)

#: The name that stands for every job without its own line.
ANY = "*"
#: A shorter token can be guessed, so it causes a warning.
TOKEN_CHARS_ADVISED = 16
METADATA_KEY = "authorization"
_SCHEME = "Bearer "
#: The visible ASCII characters, which a header may carry (RFC 6750, b64token, has fewer), without
#: the colon that ends the job.
_TOKEN = re.compile(rf"[!-9;-~]{{1,{TOKEN_CHARS_MAX}}}")


class TokenTable:
    """Tokens by job. Neither its repr nor a pickle can show a token."""

    __slots__ = ("_nobody", "_tokens")

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = dict(tokens)
        # Stands for the token of a job without one, so that all refusals take equally long.
        self._nobody = secrets.token_hex()

    def __repr__(self) -> str:
        return f"<TokenTable of {len(self._tokens)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are never pickled; pass the path of their file")

    def replace_by(self, other: TokenTable) -> None:
        """Take over the tokens of another table."""
        self._tokens = other._tokens

    def of(self, job: str) -> str | None:
        """Return the token of a job: from its own line, else from that of the job whose rail it is, else from `*`."""
        rest = self._tokens.get(ANY)
        return self._tokens.get(job) or self._tokens.get(job_of(job), rest)

    def line_of(self, job: str) -> str:
        """Return the name of the line with a job's token; empty if the table has no other line."""
        if len(self._tokens) < 2:
            return ""
        return next((name for name in (job, job_of(job)) if name in self._tokens), ANY)

    def of_any_job(self) -> str:
        """Return a token that a Status or Drain call may show."""
        return self._tokens.get(ANY) or next(iter(self._tokens.values()))

    def admits(self, job: str, shown: str) -> bool:
        """Return whether this is the job's token, in a time that does not depend on the token's errors."""
        return _equal(self.of(job) or self._nobody, shown)

    def may_drain(self, shown: str) -> bool:
        """Return whether this token may end the reducer for all jobs: that of `*`, or any token without such a line."""
        rest = self._tokens.get(ANY)
        return self.knows(shown) if rest is None else _equal(rest, shown)

    def knows(self, shown: str) -> bool:
        """Return whether this is the token of any line."""
        return sum(_equal(token, shown) for token in self._tokens.values()) > 0


def read_tokens(path: str) -> TokenTable:
    """Return the tokens of a file.

    Raises:
        ConfigError: the file cannot be read, a line is not JOB:TOKEN, or no line has a token. The
            message never shows a token.
    """
    try:
        text = read_private(path, "the token file").decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the token file {path} is not UTF-8") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        job, _, token = (part.strip() for part in line.rpartition(":"))
        where = f"line {number} of the token file {path}"
        if not job or not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{where} is not JOB:TOKEN with a token of 1 to {TOKEN_CHARS_MAX} visible ASCII characters"
            )
        if job in tokens:
            raise ConfigError(f"{where} has another token for job {job!r}")
        if len(token) < TOKEN_CHARS_ADVISED:
            log.warning(
                "%s has a token of less than %d characters, which can be guessed", where, TOKEN_CHARS_ADVISED
            )
        tokens[job] = token
    if not tokens:
        raise ConfigError(f"the token file {path} has no line JOB:TOKEN")
    return TokenTable(tokens)


def to_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return a call's metadata that shows the token, if there is one."""
    return () if token is None else ((METADATA_KEY, _SCHEME + token),)


def from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the token that a call shows; empty if it shows none."""
    for key, value in metadata:
        if key == METADATA_KEY and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return ""


def _equal(known: str, shown: str) -> bool:
    # Digests have equal length. For raw tokens the time of compare_digest would reveal whether lengths differ.
    return hmac.compare_digest(_digest(known), _digest(shown))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
