"""What is shown to reducers: a certificate, and a token."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import grpc

from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Access:
    """Certificate and token of one communicator, read once. Not to be pickled: it holds the token."""

    #: None connects without TLS.
    tls: TlsFiles | None = None
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    #: The same, for connections to data ports.
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    #: Sent with each Session call; holds the token.
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)


#: No certificate and no token.
OPEN = Access()


def with_certificates(tls: TlsFiles | None, metadata: tuple[tuple[str, str], ...]) -> Access:
    """Return the certificates of these files, if there are any, and what is sent with each call. It may block.

    Raises:
        ConfigError: a file cannot be used, or our certificate is out of date.
    """
    if tls is None:
        return Access(metadata=metadata)
    if trouble := tls.trouble():
        raise ConfigError(trouble)
    key, cert, ca = tls.read()
    return Access(tls, grpc.ssl_channel_credentials(ca, key, cert), tls.client_context(), metadata)
