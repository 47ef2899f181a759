"""Errors of unavailable addresses: option, address and cause."""

import contextlib
import errno
import random
import socket

import pytest

from reducer.binding import BindError, check_address, check_host, check_ports, hold_ports, naming
from reducer.config import ReducerConfig
from reducer.resources.ports import PortRange


@pytest.fixture
def taken():
    """A port that is taken, and whose neighbours are free. None is one that the kernel gives to connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as neighbours:
            for other in {*range(port - 6, port + 7)} - {port}:
                neighbours.enter_context(socket.create_server(("127.0.0.1", other)))
            server = socket.create_server(("127.0.0.1", port))
            break
    with server:
        yield port


@pytest.fixture
def free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize(("host", "ip"), [("127.0.0.1",) * 2, ("localhost", "127.0.0.1"), ("0.0.0.0",) * 2])
def test_a_taken_port(taken, host, ip):
    with pytest.raises(OSError, match=rf"cannot listen on {ip}:{taken}: Address already in use") as caught:
        check_address(host, taken)
    assert caught.value.errno == errno.EADDRINUSE


def test_an_address_of_another_machine():
    with pytest.raises(OSError, match=r"cannot listen on 192.0.2.1:50051: Cannot assign requested address"):
        check_address("192.0.2.1", 50051)


def test_a_free_port_stays_free(taken):
    check_address("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_address("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_host_that_does_not_resolve():
    check_host("localhost:1", "localhost")
    check_host("[::1]:1", "::1")
    for host in ("no-such-host.invalid", "a..b"):
        with pytest.raises(BindError, match=rf"--bind {host}:1: the host {host} does not resolve: \S"):
            check_host(f"{host}:1", host)


def test_the_error_starts_with_the_option():
    with pytest.raises(BindError, match=r"^--bind x: cannot$"), naming("--bind x"):
        raise OSError(errno.EADDRINUSE, "cannot")
    with pytest.raises(BindError, match=r"^--bind x: only words$"), naming("--bind x"):
        raise OSError("only words")


def test_the_ports_of_all_processes_are_held(free):
    config = ReducerConfig(bind="127.0.0.1:0", processes=2, metrics_port=free)
    ports, held = hold_ports(config)
    assert len({*ports, free}) == 3
    with held:
        for port in (*ports, free):
            with pytest.raises(OSError, match="Address already in use"):
                check_address("127.0.0.1", port)
    for port in (*ports, free):
        check_address("127.0.0.1", port)


def test_a_port_that_has_two_uses_is_refused(free):
    config = ReducerConfig(bind=f"127.0.0.1:{free}", processes=1, data_port=free)
    with pytest.raises(BindError, match=f"^--data-port {free}: cannot listen on 127.0.0.1:{free}: Address"):
        hold_ports(config)


def test_the_data_ports_of_siblings(taken):
    check_ports(ReducerConfig(bind="127.0.0.1:0", processes=1, data_port=taken - 1))
    check_ports(ReducerConfig(bind="127.0.0.1:0", processes=2, metrics_port=taken - 1))
    two = ReducerConfig(bind="127.0.0.1:0", processes=2, data_port=taken - 1)
    with pytest.raises(BindError) as caught:
        check_ports(two)
    assert str(caught.value) == (
        f"--data-port {taken - 1}, of which process 1 serves {taken - 1} + 1: "
        f"cannot listen on 127.0.0.1:{taken}: Address already in use"
    )


@pytest.mark.parametrize(
    ("of_range", "more", "text"),
    [
        ((0, 3), {}, "serves {taken} for gRPC"),
        ((-1, 3), {}, "serves {taken} for data"),
        ((-2, 3), {}, "of which process 1 serves {taken} for gRPC"),
        ((-5, 0), {"metrics_port": 0}, "of which process 0 serves {taken} for metrics"),
    ],
)
def test_the_ports_of_a_range(taken, of_range, more, text):
    ports = PortRange(taken + of_range[0], taken + of_range[1])
    config = ReducerConfig(bind=f"127.0.0.1:{ports.first}", port_range=ports, processes=2, **more)
    with pytest.raises(BindError) as caught:
        check_ports(config)
    assert str(caught.value).startswith(f"--port-range {ports}, of which process ")
    wanted = f"{text.format(taken=taken)}: cannot listen on 127.0.0.1:{taken}: Address already in use"
    assert str(caught.value).endswith(wanted)


def test_a_metrics_port_beside_a_range(taken):
    ports = PortRange(taken + 2, taken + 5)
    config = ReducerConfig(bind=f"127.0.0.1:{ports.first}", port_range=ports, processes=2, metrics_port=taken)
    with pytest.raises(BindError, match=f"^--metrics-port {taken}: cannot listen"):
        check_ports(config)
