"""Map the host of --bind to the addresses of all ports of a reducer, and to listening sockets.

0.0.0.0 means all of IPv4, :: depends on the system, and a name means all of its addresses that this machine has.
Ports are checked before the reducer serves, so that an error names option, address and cause. gRPC writes the cause of
a failed bind only to its own log.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
from collections.abc import Iterator, Sequence

from reduction.discovery.address_forms import join_host_and_port
from reduction.process.held_port import hold, refusal

from reducer.config import ReducerConfig

#: Wildcard addresses of each family.
IPV4_ANY, IPV6_ANY = "0.0.0.0", "::"
_BACKLOG = 1024
#: Number of ports to try until one is free on all addresses.
_TRIES = 16


class BindError(Exception):
    """An address cannot be bound."""


def check_host(bind: str, host: str) -> None:
    """Check that the host of --bind resolves.

    Raises:
        BindError: the host does not resolve.
    """
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BindError(f"--bind {bind}: the host {host} does not resolve: {reason}") from None


@functools.cache
def ips_of(host: str) -> tuple[str, ...]:
    """Return the IP addresses to listen at: those that this machine has, or all if it has none of them.

    A machine without IPv6 may still resolve localhost to ::1. A name is looked up once, so that all ports are at the
    same addresses.
    """
    found = dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    if host == "localhost":
        # gRPC's clients always take localhost as both addresses, so no other process may get one of them.
        found |= dict.fromkeys(("127.0.0.1", "::1"))
    return tuple(ip for ip in found if is_local(*_where(ip, 0))) or tuple(found)


def is_local(family: int, address: tuple[object, ...]) -> bool:
    """Return whether this host has an address, since only its own addresses can be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def listen(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host, at the same port; 0 picks a free one.

    Args:
        host: host of --bind.
        port: port to listen at.
        reuse_port: whether the parent process holds the port.

    Raises:
        OSError: an address cannot be bound. The text names the address and the cause.
    """
    ips, tries = ips_of(host), 1 if port else _TRIES
    while True:
        try:
            return _listen(ips, port, reuse_port)
        except OSError:
            tries -= 1
            if not tries:
                raise


def check_address(host: str, port: int) -> None:
    """Check that a port is free on all addresses of a host by binding and releasing it.

    Raises:
        OSError: see `listen`.
    """
    for sock in listen(host, port) if port else ():
        sock.close()


def free_port(host: str) -> int:
    """Return a port that is free on all addresses of a host.

    Raises:
        OSError: see `listen`.
    """
    socks = listen(host, 0)
    port = int(socks[0].getsockname()[1])
    for sock in socks:
        sock.close()
    return port


@contextlib.contextmanager
def kept_from_ipv6(port: int) -> Iterator[None]:
    """Keep a port from being bound for IPv6 during the block.

    gRPC takes 0.0.0.0 as all of IPv6 too, unless that cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # then gRPC cannot bind it either
            sock = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _bind(sock, (IPV6_ANY, port))
        yield


def shown(host: str, port: int) -> str:
    """Return all addresses at which a port is served, separated by commas, for the log."""
    ips = ips_of(host)
    return ",".join(join_host_and_port(ip, port) for ip in (*ips, *((IPV4_ANY,) if IPV6_ANY in ips else ())))


def listen_error(host: str, port: int, error: OSError) -> OSError:
    """Return an error that names address and cause without asyncio's wording."""
    cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return OSError(error.errno, f"cannot listen on {join_host_and_port(host, port)}: {cause}")


def _listen(ips: Sequence[str], port: int, reuse_port: bool) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket] = []
        for ip in ips:
            where = _where(ip, port)
            try:
                sock = stack.enter_context(socket.socket(where[0], socket.SOCK_STREAM))
                _bind(sock, where[1], reuse_port)
            except OSError as error:
                raise listen_error(ip, port, error) from None
            _check_ipv6_only(sock, ip, port)
            port = sock.getsockname()[1]
            socks.append(sock)
        stack.pop_all()
        return socks


def _bind(sock: socket.socket, where: tuple[object, ...], reuse_port: bool = False) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
    # Connections in TIME_WAIT do not block the address.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(where)
    sock.listen(_BACKLOG)


def _check_ipv6_only(sock: socket.socket, ip: str, port: int) -> None:
    """Refuse :: where the system takes it as IPv6 only, because gRPC would also serve IPv4."""
    if ip == IPV6_ANY and sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        raise OSError(
            None,
            f"cannot listen on {join_host_and_port(ip, port)} for IPv6 only, as net.ipv6.bindv6only of this system "
            f"says: name one IPv6 address of this host",
        )


def _where(ip: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """Return the family and socket address of an IP address, including the scope of fe80::1%eth0."""
    info = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    return info[0], info[4]


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """Convert an OSError of the block to a BindError that begins with an option."""
    try:
        yield
    except OSError as error:
        raise BindError(f"{option}: {error.strerror or error}") from error


def check_ports(config: ReducerConfig) -> None:
    """Check that all ports of all processes are free.

    Raises:
        BindError: a port is taken. The error names the option that requires it.
    """
    for number in range(config.processes):
        ports = config.ports(number)
        for option, port in zip(
            _options(config, number), (ports.grpc, ports.data, ports.metrics), strict=True
        ):
            with naming(option):
                check_address(config.host, port or 0)


def hold_ports(config: ReducerConfig) -> tuple[list[int], contextlib.ExitStack]:
    """Hold all ports of all processes, so that a restarted process finds them free. Call `check_ports` first.

    Returns:
        The gRPC port of each process, and a stack that releases all ports when it is closed.

    Raises:
        BindError: a port is taken, or has two uses.
    """
    chosen: list[int] = []
    seen: set[int] = set()
    with contextlib.ExitStack() as held:
        for number in range(config.processes):
            ports = config.ports(number)
            options = _options(config, number)
            for option, port in zip(options, (ports.grpc, ports.data, ports.metrics), strict=True):
                is_grpc = option is options[0]
                if not (port or is_grpc):
                    continue  # there is no port, or the process picks it and reports it
                with naming(option):
                    if port in seen:
                        raise refusal(config.host, port, errno.EADDRINUSE)
                    port, sockets = hold(ips_of(config.host), port or 0)
                    for one in sockets:
                        held.enter_context(one)
                seen.add(port)
                if is_grpc:
                    chosen.append(port)
        return chosen, held.pop_all()


def _options(config: ReducerConfig, number: int) -> tuple[str, str, str]:
    """Return the options that set the gRPC, data and metrics port of a process."""
    data, metrics = f"--data-port {config.data_port}", f"--metrics-port {config.metrics_port}"
    if config.port_range is not None:
        of = f"--port-range {config.port_range}, of which process {number} serves"
        ports = config.ports(number)
        last = metrics if config.metrics_port else f"{of} {ports.metrics} for metrics"
        return f"{of} {ports.grpc} for gRPC", f"{of} {ports.data} for data", last
    if number == 0:
        return f"--bind {config.bind}", data, metrics
    return "--processes", f"{data}, of which process {number} serves {config.data_port} + {number}", metrics
