"""Settings of `reducer serve`, checked when they are made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles, tls_files

from reducer.resources.allowance import default_memory_limit, default_workers

DRAIN_TIMEOUT_S = 30.0
WORKERS_MAX = 256
TLS_OPTIONS = ("--tls-cert", "--tls-key", "--tls-ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerConfig:
    """What one reducer process is told at its start."""

    #: Address to serve, HOST:PORT; port 0 picks a free one.
    bind: str
    #: Port of the TCP data plane on the same host; 0 picks a free one.
    data_port: int = 0
    #: Port for Prometheus on the same host, None for no metrics.
    metrics_port: int | None = None
    #: Processes that serve.
    workers: int = field(default_factory=default_workers)
    #: Most bytes that all jobs together may reserve in all processes.
    memory_limit_bytes: int = field(default_factory=default_memory_limit)
    #: Certificate, private key and CA of mutual TLS, in PEM; all or none.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    #: File of the jobs' tokens (`reduction.security.tokens`); None asks nobody for one.
    token_file: str | None = None
    #: Whether a non-loopback address may be served without TLS or token.
    insecure: bool = False
    #: Whether to stop when stdin closes: the embedded reducer ends with its parent.
    stop_with_stdin: bool = False
    #: How long SIGTERM waits for jobs to leave.
    drain_timeout_s: float = DRAIN_TIMEOUT_S

    def __post_init__(self) -> None:
        host, port = split_address(self.bind)
        if not 0 <= port <= 65535:
            raise ConfigError(f"--bind {self.bind}: the port must be 0 to 65535")
        if not 0 <= self.data_port <= 65535:
            raise ConfigError(f"--data-port {self.data_port}: must be 0 to 65535")
        if self.metrics_port is not None and not 0 < self.metrics_port <= 65535:
            raise ConfigError(f"--metrics-port {self.metrics_port}: must be 1 to 65535")
        if not 1 <= self.workers <= WORKERS_MAX:
            raise ConfigError(f"--workers {self.workers}: must be 1 to {WORKERS_MAX}")
        if self.memory_limit_bytes < self.workers:
            raise ConfigError(f"--memory-limit {self.memory_limit_bytes}: must be positive")
        if self.tls is not None and self.data_port:
            raise ConfigError(
                f"--data-port {self.data_port}: the TCP data plane is not encrypted, and off with TLS; leave it out"
            )
        is_guarded = self.tls is not None or self.token_file is not None
        if not (is_guarded or self.insecure or _is_loopback(host)):
            raise ConfigError(
                f"--bind {self.bind} is not a loopback address, and connections would be neither encrypted nor "
                f"authenticated: add --tls-cert, --tls-key and --tls-ca, or --token-file, or --insecure if "
                f"everybody on that network may be trusted"
            )

    @property
    def tls(self) -> TlsFiles | None:
        """The files of mutual TLS, None without it."""
        return tls_files(self.tls_cert, self.tls_key, self.tls_ca, TLS_OPTIONS)

    @property
    def memory_limit_bytes_each(self) -> int:
        """What one process may reserve."""
        return self.memory_limit_bytes // self.workers

    def address(self, port: int) -> str:
        """Return HOST:PORT with our host."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def host(self) -> str:
        """Host part of `bind`, without brackets."""
        return split_address(self.bind)[0]


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT or [IPV6]:PORT.

    Raises:
        ConfigError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal():
        raise ConfigError(f"{address!r} is not HOST:PORT")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
