"""The ports of a reducer are reachable at the addresses given to --bind, and at no others."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

import pytest

from reducer import binding
from reducer.engine import Engine
from reducer.transports.grpc_server import GrpcServer
from reducer.transports.tcp_server import DataPort

HERE = ("127.0.0.1", "::1")
BOTH = "both.example"


def answers(ip, port):
    try:
        socket.create_connection((ip, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def _has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
def both(monkeypatch):
    """Resolve BOTH to an address of each family, and to one that this machine does not have."""
    real = socket.getaddrinfo

    def look_up(host, port, *arguments, **settings):
        hosts = ("192.0.2.1", *HERE) if host == BOTH else (host,)
        return [answer for one in hosts for answer in real(one, port, *arguments, **settings)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    binding.ips_of.cache_clear()
    yield
    binding.ips_of.cache_clear()


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", ("127.0.0.1",)),
        ("[::]", HERE),
        ("127.0.0.1", ("127.0.0.1",)),
        ("[::1]", ("::1",)),
        (BOTH, HERE),
        ("localhost", HERE),
    ],
)
@pytest.mark.parametrize("is_chosen", [False, True], ids=["a free port", "a chosen port"])
def test_every_port_listens_on_all_addresses_of_the_host_and_no_others(
    both, free_port, host, reached, is_chosen
):
    """Another program may use the same port at an address on which the reducer does not listen."""
    plain = host.strip("[]")

    async def run():
        wanted = [free_port() if is_chosen else 0 for _ in range(3)]
        data_port, grpc = DataPort(), GrpcServer(Engine(memory_limit_bytes=1 << 20))
        data_port.start(plain, wanted[0])
        http = binding.listen(plain, wanted[1])
        ports = [data_port.port, http[0].getsockname()[1], grpc.bind(f"{host}:{wanted[2]}")]
        await grpc.start()
        try:
            answering = [(ip, port) for port in ports for ip in HERE if answers(ip, port)]
        finally:
            await grpc.stop(0)
            data_port.stop()
            for sock in http:
                sock.close()
        others = [(ip, port) for ip, port in answering if ip not in reached and answers(ip, port)]
        assert sorted(answering) == sorted(others + [(ip, port) for port in ports for ip in reached])
        assert ports == [number or port for port, number in zip(ports, wanted, strict=True)]

    asyncio.run(run())


def test_a_name_is_looked_up_once(both, monkeypatch):
    """With several lookups the ports could get different addresses, or the reducer end when a name server fails."""
    [sock, other] = binding.listen(BOTH, 0)
    sock.close()
    other.close()
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert binding.shown(BOTH, 7) == "127.0.0.1:7,[::1]:7"


def test_a_port_that_is_taken_on_one_of_the_addresses(both, free_port):
    async def run(port):
        grpc = GrpcServer(Engine(memory_limit_bytes=1 << 20))
        for bind in (lambda: DataPort().start(BOTH, port), lambda: grpc.bind(f"{BOTH}:{port}")):
            with pytest.raises(
                OSError, match=re.escape(f"cannot listen on [::1]:{port}: Address already in use")
            ):
                bind()
        await grpc.stop(0)

    port = free_port()  # at 127.0.0.1
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        asyncio.run(run(port))


def test_ipv6_only_is_refused_because_grpc_does_not_support_it(monkeypatch):
    real = socket.socket.getsockopt
    monkeypatch.setattr(
        socket.socket,
        "getsockopt",
        lambda sock, *option: 1 if option[1] == socket.IPV6_V6ONLY else real(sock, *option),
    )
    with pytest.raises(OSError, match="bindv6only"):
        binding.listen("::", 0)


def test_the_log_names_every_address_of_every_port(serve, free_port, until):
    port = free_port()
    reducer = serve("--metrics-port", str(port), "--insecure", bind="[::]:0")
    pattern = re.compile(r" grpc=(\S+) data=(\S+) http=(\S+) ")
    found = until(lambda: pattern.search(reducer.log.text), "the line that says where it serves")
    grpc, data, http = found.groups()
    assert (grpc, http) == (f"[::]:{reducer.port},0.0.0.0:{reducer.port}", f"[::]:{port},0.0.0.0:{port}")
    assert re.fullmatch(r"\[::\]:(\d+),0\.0\.0\.0:\1", data)
