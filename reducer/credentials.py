"""The reducer's certificates and tokens, which follow their files: cert-manager and Vault renew them in place."""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable

import grpc
from reduction.errors import ConfigError
from reduction.security.expiry import expires_at
from reduction.security.tls import TlsFiles
from reduction.security.tokens import TokenTable, read_tokens

log = logging.getLogger(__name__)

#: How often the files are looked at, in seconds.
LOOK_S = 5.0


class Certificates:
    """Credentials that demand a certificate of the client. Connections that stand keep what they began with."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ConfigError: one cannot be used.
        """
        self._files = files
        #: When the first certificate of each file expires, in seconds since 1970.
        self.expiry: dict[str, float] = {}
        self._lock = threading.Lock()
        self._renewed: grpc.ServerCertificateConfiguration | None = None
        self._context: ssl.SSLContext
        self._watch = _Watch((files.cert, files.key, files.ca), self._renew)
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._read(),
            self._take_renewed,  # type: ignore[arg-type]  # gRPC documents that it may return None
            require_client_authentication=True,
        )

    def look(self) -> None:
        """Read the files again if they have changed; warn and stay with the old ones if they cannot be used."""
        self._watch.look()

    def context(self) -> ssl.SSLContext:
        """Return what a handshake of the data port shall use from now on."""
        return self._context

    def _read(self) -> grpc.ServerCertificateConfiguration:
        key, cert, ca = self._files.read()
        self._context = self._files.server_context()
        self.expiry = {"own": expires_at(cert, self._files.cert), "ca": expires_at(ca, self._files.ca)}
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)

    def _renew(self) -> None:
        configuration = self._read()
        with self._lock:
            self._renewed = configuration

    def _take_renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what a handshake shall use from now on, None if that has not changed; on a thread of gRPC."""
        with self._lock:
            renewed, self._renewed = self._renewed, None
            return renewed


class Tokens:
    """The table of a token file."""

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be used.
        """
        self._path = path
        self._watch = _Watch((path,), self._renew)
        self.table: TokenTable = read_tokens(path)

    def look(self) -> None:
        """Read the file again if it has changed; warn and stay with the old table if it cannot be used."""
        self._watch.look()

    def _renew(self) -> None:
        self.table.replace_by(read_tokens(self._path))


class _Watch:
    """Calls a function when files have changed, until it succeeds."""

    def __init__(self, paths: tuple[str, ...], renew: Callable[[], None]) -> None:
        self._paths = paths
        self._renew = renew
        # These are from before the first reading, so a change in between is not missed.
        self._seen = self._refused = self._versions()

    def look(self) -> None:
        versions = self._versions()
        if versions == self._seen:
            return
        try:
            self._renew()
        except ConfigError as error:
            # Of several files, some may be new already. They are tried again at the next look.
            if versions != self._refused:
                log.warning("still using what was read before: %s", error)
                self._refused = versions
            return
        self._seen = versions
        log.info("read again, because changed: %s", " ".join(self._paths))

    def _versions(self) -> list[tuple[int, int, int] | None]:
        return [_version(path) for path in self._paths]


def _version(path: str) -> tuple[int, int, int] | None:
    """Return what changes with a file, None if it is not there or can be read only once, as a pipe."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if stat.S_ISREG(status.st_mode) else None
