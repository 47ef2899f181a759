"""The settings of `reducer serve`, which are checked on construction."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace

from reduction.discovery.address_forms import join_host_and_port
from reduction.discovery.cluster import DEFAULT_PORT
from reduction.errors import ConfigError
from reduction.limits import DRAIN_S_MAX, PROCESSES_MAX
from reduction.security.tls import TlsFiles, tls_files

from reducer.resources.host_limits import default_memory_limit, default_processes
from reducer.resources.ports import LAST_PORT, PortRange, Ports

DRAIN_TIMEOUT_S = 30.0
#: Default host of a reducer.
DEFAULT_HOST = "127.0.0.1"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
TLS_OPTIONS = ("--tls-cert", "--tls-key", "--tls-ca")
#: The workers' variables for the same files and for their tokens. Commands that query reducers read them too.
WORKERS_TLS_VARIABLES = ("REDUCTION_TLS_CERT", "REDUCTION_TLS_KEY", "REDUCTION_TLS_CA")
TOKEN_FILE_VARIABLE = "REDUCTION_TOKEN_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducerConfig:
    """Settings of one reducer process."""

    #: Address to serve, HOST:PORT; port 0 picks a free one.
    bind: str
    #: Port of the TCP data plane on the same host; 0 picks a free one.
    data_port: int = 0
    #: Port for Prometheus on the same host, None for no metrics; 0 takes the last port of `port_range`. It
    #: answers for all processes.
    metrics_port: int | None = None
    #: Number of this process.
    number: int = 0
    #: Inherited descriptors: in the first process, for requesting the metrics of the others; in another
    #: process, for answering such requests (`reducer.observe.gathering`).
    metrics_lines: tuple[int, ...] = ()
    #: Range of all ports of all processes (`reducer.resources.ports`); None for no fixed range.
    port_range: PortRange | None = None
    #: Whether `metrics_port` also serves the page, which shows names of jobs and hosts to anyone.
    page: bool = False
    #: Additional names of this host by which browsers may request the page; "*" for all.
    page_hosts: tuple[str, ...] = ()
    #: Number of serving processes.
    processes: int = field(default_factory=default_processes)
    #: Maximum bytes that all jobs together may reserve in all processes.
    memory_limit_bytes: int = field(default_factory=default_memory_limit)
    #: Certificate, private key and CA of mutual TLS, in PEM; all or none.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    #: File of the jobs' tokens (`reduction.security.tokens`); None requires no tokens.
    token_file: str | None = None
    #: Whether a non-loopback address may be served without TLS or token.
    insecure: bool = False
    #: Rate of the host's link in its slower direction, in Mbit/s; 0 if not given.
    link_mbit: int = 0
    #: Whether to stop when stdin closes, so that an embedded reducer ends with its parent.
    stop_with_stdin: bool = False
    #: Whether a supervisor has started this process and sends it orders on stdin.
    under_supervisor: bool = False
    #: Whether the parent process holds the ports (`reduction.process.held_port`), so that this one shares them.
    ports_are_held: bool = False
    #: How long SIGTERM waits for jobs to leave.
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    #: How long this reducer stays after its last job, in seconds; None means forever.
    exit_after_job_s: float | None = None
    #: Directory for records of collectives, or None.
    trace: str | None = None
    #: How long this reducer waits for its first job, in seconds; None means forever.
    wait_for_job_s: float | None = None
    #: Log level, one of LOG_LEVELS, and log format, one of LOG_FORMATS.
    log_level: str = "info"
    log_format: str = LOG_FORMATS[0]

    def __post_init__(self) -> None:
        host, port = split_address(self.bind)
        self._check_ports(port)
        if self.page and self.metrics_port is None:
            raise ConfigError("--page: the page is on the metrics port, so set --metrics-port too")
        if self.page_hosts and not self.page:
            raise ConfigError("--page-hosts: there is no page without --page")
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise ConfigError(f"--processes {self.processes}: must be 1 to {PROCESSES_MAX}")
        if self.memory_limit_bytes < self.processes:
            raise ConfigError(
                f"--memory-limit {self.memory_limit_bytes}: must be at least {self.processes}, a byte for each process"
            )
        if not 0 <= self.drain_timeout_s <= DRAIN_S_MAX:
            raise ConfigError(f"--drain-timeout {self.drain_timeout_s:g}: must be 0 to {DRAIN_S_MAX} seconds")
        for option, seconds in (
            ("--exit-after-job", self.exit_after_job_s),
            ("--wait-for-job", self.wait_for_job_s),
        ):
            if seconds is not None and not 0 <= seconds < float("inf"):
                raise ConfigError(f"{option} {seconds:g}: must be 0 or more seconds, and finite")
        is_guarded = self.tls is not None or self.token_file is not None
        if not (is_guarded or self.insecure or _is_loopback(host)):
            raise ConfigError(
                f"--bind {self.bind} is not a loopback address, and connections would be neither encrypted nor "
                f"authenticated: add --tls-cert, --tls-key and --tls-ca, or --token-file, or --insecure "
                f"(REDUCER_INSECURE=1) if everybody on that network may be trusted"
            )

    def _check_ports(self, port: int) -> None:
        """Check all ports; `port` is the port of `bind`.

        Raises:
            ConfigError: a port is out of range, or the ports do not suit the processes.
        """
        if not 0 <= port <= LAST_PORT:
            raise ConfigError(f"--bind {self.bind}: the port must be 0 to {LAST_PORT}")
        if not 0 <= self.data_port <= LAST_PORT:
            raise ConfigError(f"--data-port {self.data_port}: must be 0 to {LAST_PORT}")
        least = 1 if self.port_range is None else 0
        if self.metrics_port is not None and not least <= self.metrics_port <= LAST_PORT:
            hint = ", or 0 with --port-range" if self.metrics_port == 0 else ""
            raise ConfigError(f"--metrics-port {self.metrics_port}: must be {least} to {LAST_PORT}{hint}")
        last = self.data_port + self.processes - 1
        if self.data_port and last > LAST_PORT:
            raise ConfigError(
                f"--data-port {self.data_port}: {self.processes} processes take the ports up to {last}, and "
                f"{LAST_PORT} is the last"
            )
        if self.port_range is None:
            return
        if self.data_port:
            raise ConfigError(
                f"--data-port {self.data_port}: --port-range {self.port_range} has the data ports: leave one out"
            )
        if port != self.port_range.first:
            raise ConfigError(
                f"--bind {self.bind}: --port-range {self.port_range} begins with another port; give port 0 to take that"
            )
        self.port_range.check(self.processes, self.metrics_port)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of mutual TLS, None without it."""
        return tls_files(self.tls_cert, self.tls_key, self.tls_ca, TLS_OPTIONS)

    @property
    def ends_by_itself(self) -> bool:
        """Whether the reducer ends on its own when there is no job."""
        return self.exit_after_job_s is not None or self.wait_for_job_s is not None

    @property
    def memory_limit_bytes_each(self) -> int:
        """Bytes that jobs may reserve in one process."""
        return self.memory_limit_bytes // self.processes

    def address(self, port: int) -> str:
        """Return HOST:PORT with the host of `bind`."""
        return join_host_and_port(self.host, port)

    def ports(self, number: int = 0) -> Ports:
        """Return the ports of a process, counted from 0."""
        if self.port_range is not None:
            return self.port_range.ports(number, self.metrics_port)
        return Ports(
            split_address(self.bind)[1] if number == 0 else 0,
            self.data_port + number if self.data_port else 0,
            self.metrics_port if number == 0 else None,
        )

    def of_process(self, number: int, port: int, metrics_lines: tuple[int, ...]) -> ReducerConfig:
        """Return the settings of one of several processes whose ports the supervisor holds.

        Args:
            number: number of the process, from 0.
            port: gRPC port.
            metrics_lines: see the field.
        """
        ports, has_page = self.ports(number), self.page and number == 0
        return replace(
            self,
            bind=self.address(port),
            data_port=ports.data,
            metrics_port=ports.metrics,
            number=number,
            metrics_lines=metrics_lines,
            port_range=None,
            page=has_page,
            page_hosts=self.page_hosts if has_page else (),
            processes=1,
            memory_limit_bytes=self.memory_limit_bytes_each,
            stop_with_stdin=False,
            under_supervisor=True,
            ports_are_held=True,
        )

    @property
    def metrics_url(self) -> str | None:
        """URL of the metrics of all processes. None without metrics."""
        port = self.ports().metrics
        return None if port is None else f"http://{self.address(port)}/metrics"

    @property
    def own_host(self) -> str:
        """A host at which other processes of this machine reach `bind`."""
        if self.host == "0.0.0.0" and self.tls is None:
            return DEFAULT_HOST  # another user may listen at localhost's ::1, and would receive tokens
        return "localhost" if self.host in ("0.0.0.0", "::") else self.host

    @property
    def host(self) -> str:
        """Host part of `bind`, without brackets."""
        return split_address(self.bind)[0]


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT or [IPV6]:PORT.

    Raises:
        ConfigError: the address does not have that form.
    """
    host, _, port = address.rpartition(":")
    if _is_ipv6(host):
        raise ConfigError(f"{address!r} has an IPv6 address without brackets: write [{host}]:{port}")
    if _is_ipv6(address):
        raise ConfigError(f"{address!r} is an IPv6 address without a port: write [{address}]:{DEFAULT_PORT}")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal():
        raise ConfigError(f"{address!r} is not HOST:PORT, such as 10.0.0.5:50051")
    return host, int(port)


def complete_address(address: str) -> str:
    """Return HOST:PORT. A bare port means the loopback address."""
    return join_host_and_port(DEFAULT_HOST, int(address)) if address.isdecimal() else address


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
