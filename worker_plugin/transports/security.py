"""What a rank shows to reducers: its certificate, and its job's token."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import grpc
from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles
from reduction.security.tokens import read_tokens, to_metadata

from worker_plugin.config import PluginConfig


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


def access_of(config: PluginConfig, job: str) -> Access:
    """Return what the settings say, for this job. Reads files, so it may block.

    Raises:
        ConfigError: a file cannot be used, or has no token for the job.
    """
    token = None
    if config.token_file is not None:
        token = read_tokens(config.token_file).of(job)
        if token is None:
            raise ConfigError(f"token_file {config.token_file} has no line for job {job!r}, and none for '*'")
    return with_certificates(config.tls, to_metadata(token))


def private_access(token: str, config: PluginConfig | None = None) -> Access:
    """Return what a reducer wants to see that a rank of this job has started.

    Args:
        token: of this reducer.
        config: with certificates, if it is reached over the network.

    Raises:
        ConfigError: a file of the settings cannot be used.
    """
    return with_certificates(None if config is None else config.tls, to_metadata(token))


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
