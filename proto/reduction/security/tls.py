"""The three PEM files of mutual TLS on either side. Only their paths are kept.

Files are read when a process starts or connects. Their contents are passed to gRPC and not kept here, so neither a
repr nor a pickle can show a secret.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
from dataclasses import dataclass

from reduction.errors import ConfigError
from reduction.limits import FILE_BYTES_MAX
from reduction.security.certificate_dates import validities

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of our certificate (chain), its private key, and the CA that must have signed the peer's certificate."""

    cert: str
    key: str
    ca: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return key, certificate and CA, in the order that gRPC expects.

        Raises:
            ConfigError: see `client_context`.
        """
        key = read_private(self.key, "the private key")
        self.client_context()
        return key, read_file(self.cert, "the certificate"), read_file(self.ca, "the CA's certificates")

    def trouble(self) -> str:
        """Return why peers would reject our certificate now; empty if its dates are right or cannot be read."""
        try:
            first, *_ = validities(read_file(self.cert, "the certificate"), self.cert)
        except ConfigError:  # the error will show when the file is used
            return ""
        trouble = first.trouble(time.time())
        return trouble and f"our certificate {self.cert} {trouble}: renew it, or set the clock"

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the peer's.

        Raises:
            ConfigError: a file cannot be read, is not PEM, or key and certificate do not belong together.
        """
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate, and demands and checks the client's. TLS 1.3 only.

        Raises:
            ConfigError: see `client_context`.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # disables session resumption, so that every connection shows its certificate
        return self._loaded(context)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        # As in gRPC, each certificate in the CA's file is trusted, even one signed by another CA.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"{self.ca} cannot be used as the CA's certificates: {error}") from None
        try:
            context.load_cert_chain(self.cert, self.key, password=self._password)
        except OSError as error:
            raise ConfigError(
                f"{self.cert} and {self.key} cannot be used as certificate and private key: {error}"
            ) from None
        return context

    def _password(self) -> str:
        """Refuse an encrypted key, because OpenSSL would prompt for its passphrase, and gRPC cannot use it."""
        raise ConfigError(f"the private key {self.key} is encrypted: store it without a passphrase")


def tls_files(
    cert: str | None, key: str | None, ca: str | None, names: tuple[str, str, str]
) -> TlsFiles | None:
    """Return the files if all three are named, None if none is; `names` are the names of the settings.

    Raises:
        ConfigError: some are named and some are not.
    """
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        given = zip(names, (cert, key, ca), strict=True)
        missing = [name for name, value in given if value is None]
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(
            f"{' and '.join(missing)} {verb} missing: TLS needs {', '.join(names)}, all three or none"
        )
    return TlsFiles(cert, key, ca)


def read_private(path: str, what: str) -> bytes:
    """Return a file's content as `read_file` does; warn if every user of this machine may read it."""
    data = read_file(path, what)
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        log.warning("%s %s can be read by every user of this machine: chmod o-r it", what, path)
    return data


def read_file(path: str, what: str) -> bytes:
    """Return a file's content.

    Raises:
        ConfigError: the file cannot be read, or has more than FILE_BYTES_MAX bytes.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{what} {path} has more than {FILE_BYTES_MAX} bytes")
    return data
