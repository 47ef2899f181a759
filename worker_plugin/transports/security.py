"""A rank's credentials for reducers: its certificate and its job's token."""

from __future__ import annotations

from reduction.client.access import Access, with_certificates
from reduction.errors import ConfigError
from reduction.security.tokens import read_tokens, to_metadata

from worker_plugin.config import PluginConfig


def access_of(config: PluginConfig, job: str) -> Access:
    """Return the credentials that the settings specify for this job. Reads files, so it may block.

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
    """Return the credentials for a reducer that a rank of this job has started.

    Args:
        token: the reducer's.
        config: settings with certificates, if it is reached over the network.

    Raises:
        ConfigError: a file of the settings cannot be used.
    """
    return with_certificates(None if config is None else config.tls, to_metadata(token))
