"""Credentials presented to reducers: a certificate and a token."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import grpc

from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Access:
    """Certificate and token of one communicator, read once. Do not pickle it, because it holds the token."""

    #: None connects without TLS.
    tls: TlsFiles | None = None
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    #: TLS settings for connections to data ports.
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    #: Sent with each Session call. It holds the token.
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)


#: No certificate and no token.
OPEN = Access()


def with_certificates(tls: TlsFiles | None, metadata: tuple[tuple[str, str], ...]) -> Access:
    """Return the access with the certificates in these files, if any, and the metadata of each call. May block.

    Raises:
        ConfigError: a file cannot be used, or our certificate has expired or is not valid yet.
    """
    if tls is None:
        return Access(metadata=metadata)
    if trouble := tls.trouble():
        raise ConfigError(trouble)
    key, cert, ca = tls.read()
    return Access(tls, grpc.ssl_channel_credentials(ca, key, cert), tls.client_context(), metadata)
