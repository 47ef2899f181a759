"""Checks addresses before the reducer serves, so that an error names option, address and cause.

gRPC writes the cause of a failed bind into its own log only. It calls an address that does not
resolve misformatted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from reduction.process.held_port import hold, refusal

from reducer.config import ReducerConfig, address_of


class BindError(Exception):
    """An address cannot be bound."""


def check_host(bind: str, host: str) -> None:
    """Look the host of --bind up.

    Raises:
        BindError: it does not resolve.
    """
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BindError(f"--bind {bind}: the host {host} does not resolve: {reason}") from None


def check_address(host: str, port: int) -> None:
    """Find out whether a port is free on all addresses of a host, by binding and letting go.

    Raises:
        OSError: it is taken on one of them, or all refuse for another reason. The text names the
            address and the cause.
    """
    if port == 0:
        return
    infos = dict.fromkeys(
        (info[0], info[4]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    errors = [error for family, where in infos if (error := _try(family, where)) is not None]
    taken = [error for error in errors if error.errno == errno.EADDRINUSE]
    # A machine without IPv6 may still call ::1 localhost: one address is enough.
    if taken or len(errors) == len(infos):
        raise listen_error(host, port, (taken or errors)[0]) from None


def _try(family: int, where: tuple[object, ...]) -> OSError | None:
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        try:
            # Servers set this too, so that connections in TIME_WAIT do not block the address.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(where[0] != "::"))
            sock.bind(where)
            sock.listen(1)
        except OSError as error:
            return error
    return None


def listen_error(host: str, port: int, error: OSError) -> OSError:
    """Return an error that names address and cause, without asyncio's words around them."""
    cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return OSError(error.errno, f"cannot listen on {address_of(host, port)}: {cause}")


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """Turn an OSError of the block into a BindError that begins with an option."""
    try:
        yield
    except OSError as error:
        raise BindError(f"{option}: {error.strerror or error}") from error


def check_ports(config: ReducerConfig) -> None:
    """Check that all ports of all processes are free. An error names the option that asks for them.

    Raises:
        BindError: one is taken.
    """
    for number in range(config.processes):
        ports = config.ports(number)
        for option, port in zip(
            _options(config, number), (ports.grpc, ports.data, ports.metrics), strict=True
        ):
            with naming(option):
                check_address(config.host, port or 0)


def hold_ports(config: ReducerConfig) -> tuple[list[int], contextlib.ExitStack]:
    """Hold all ports of all processes, so that one which starts again finds them free. `check_ports` comes before.

    Returns:
        The gRPC port of each process, and what lets all ports go when it is closed.

    Raises:
        BindError: one is taken, or has two uses.
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
                    continue  # there is none, or the process picks it and tells who must know
                with naming(option):
                    if port in seen:
                        raise refusal(config.host, port, errno.EADDRINUSE)
                    port, sockets = hold([config.host], port or 0)
                seen.add(port)
                for one in sockets:
                    held.enter_context(one)
                if is_grpc:
                    chosen.append(port)
        return chosen, held.pop_all()


def _options(config: ReducerConfig, number: int) -> tuple[str, str, str]:
    """Return the options that say the gRPC, data and metrics port of a process."""
    data, metrics = f"--data-port {config.data_port}", f"--metrics-port {config.metrics_port}"
    if config.port_range is not None:
        of = f"--port-range {config.port_range}, of which process {number} serves"
        ports = config.ports(number)
        last = metrics if config.metrics_port else f"{of} {ports.metrics} for metrics"
        return f"{of} {ports.grpc} for gRPC", f"{of} {ports.data} for data", last
    if number == 0:
        return f"--bind {config.bind}", data, metrics
    return "--processes", f"{data}, of which process {number} serves {config.data_port} + {number}", metrics
