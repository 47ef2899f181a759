"""The reducer's certificates and tokens, reloaded when their files change, as cert-manager and Vault renew them."""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import grpc
from reduction.errors import ConfigError
from reduction.security.certificate_dates import Validity, date, validities
from reduction.security.tls import TlsFiles
from reduction.security.tokens import TokenTable, read_tokens

log = logging.getLogger(__name__)

#: How often the files are checked, in seconds.
LOOK_S = 5.0
DAY_S = 24 * 3600
#: Days before a certificate's expiry at which a warning is logged; 0 means after the expiry.
WARN_DAYS = (0, 1, 7, 30)


class _Read(NamedTuple):
    """Consistent contents of the three files."""

    configuration: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    own: list[Validity]
    ca: list[Validity]


class Certificates:
    """Credentials that require a client certificate. Existing connections keep the credentials they began with."""

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        """Read the files, and warn of certificates that are invalid now or expire soon.

        Args:
            files: paths of the files.
            clock: returns seconds since 1970.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._files = files
        self._clock = clock
        #: For each path, the expiry that was last warned of, and how many days before it.
        self._warned: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._renewed: grpc.ServerCertificateConfiguration | None = None
        self._watch = _Watch((files.cert, files.key, files.ca), self._renew)
        self._used = self._read()
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._used.configuration,
            self._take_renewed,  # type: ignore[arg-type]  # gRPC documents that it may return None
            require_client_authentication=True,
        )
        own = self._used.own[0]
        if clock() < own.begin:
            log.warning("%s %s: until then nobody accepts it", files.cert, own.trouble(clock()))
        self._warn_of_ends()

    @property
    def expiry(self) -> dict[str, float]:
        """When the first certificate of each file expires, in seconds since 1970."""
        return {"own": _first_end(self._used.own), "ca": _first_end(self._used.ca)}

    def look(self) -> None:
        """Reread the files if they have changed. If they cannot be used, warn and keep the old contents."""
        self._watch.look()
        self._warn_of_ends()

    def context(self) -> ssl.SSLContext:
        """Return the context for new handshakes on the data port."""
        return self._used.context

    def _read(self) -> _Read:
        key, cert, ca = self._files.read()
        return _Read(
            grpc.ssl_server_certificate_configuration([(key, cert)], ca),
            self._files.server_context(),
            validities(cert, self._files.cert),
            validities(ca, self._files.ca),
        )

    def _renew(self) -> Callable[[], None]:
        found = self._read()
        if trouble := found.own[0].trouble(self._clock()):
            raise ConfigError(f"the new {self._files.cert} {trouble}")
        return partial(self._take, found)

    def _take(self, found: _Read) -> None:
        self._used = found
        with self._lock:
            self._renewed = found.configuration

    def _warn_of_ends(self) -> None:
        for path, each in ((self._files.cert, self._used.own), (self._files.ca, self._used.ca)):
            end = _first_end(each)
            left = end - self._clock()
            days = next((days for days in WARN_DAYS if left <= days * DAY_S), None)
            if days is not None and self._warned.get(path) != (end, days):
                self._warned[path] = end, days
                verb = "expires" if left > 0 else "expired"
                log.warning("%s %s on %s: renew it", path, verb, date(end))

    def _take_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration for new handshakes, None if it has not changed. Called on a gRPC thread."""
        with self._lock:
            renewed, self._renewed = self._renewed, None
            return renewed


def _first_end(each: list[Validity]) -> float:
    return min(one.end for one in each)


class Tokens:
    """The table of a token file."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ConfigError: the file cannot be used.
        """
        self._path = path
        self._watch = _Watch((path,), self._renew)
        self.table: TokenTable = read_tokens(path)

    def look(self) -> None:
        """Reread the file if it has changed. If it cannot be used, warn and keep the old table."""
        self._watch.look()

    def _renew(self) -> Callable[[], None]:
        return partial(self.table.replace_by, read_tokens(self._path))


class _Watch:
    """Reread files when they have changed, until that succeeds.

    Args:
        paths: paths of the files.
        renew: reads the files, and returns a function that activates their contents.
    """

    def __init__(self, paths: tuple[str, ...], renew: Callable[[], Callable[[], None]]) -> None:
        self._paths = paths
        self._renew = renew
        # Taken before the first read, so that no change in between is missed.
        self._seen = self._refused = self._versions()

    def look(self) -> None:
        versions = self._versions()
        if versions == self._seen:
            return
        try:
            take = self._renew()
        except ConfigError as error:
            # Only some of several files may have been replaced so far. The next look tries again.
            if versions != self._refused:
                log.warning("still using what was read before: %s", error)
                self._refused = versions
            return
        if self._versions() != versions:  # the contents may be inconsistent
            return
        take()
        self._seen = versions
        log.info("read again, because changed: %s", " ".join(self._paths))

    def _versions(self) -> list[tuple[int, int, int] | None]:
        return [_version(path) for path in self._paths]


def _version(path: str) -> tuple[int, int, int] | None:
    """Return a value that changes with a file, None if it does not exist or, like a pipe, can be read only once."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if stat.S_ISREG(status.st_mode) else None
