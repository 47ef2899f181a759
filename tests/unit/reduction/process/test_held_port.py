"""A held port: no one else gets it, but a server that shares it does, repeatedly."""

import errno
import os
import socket
import subprocess
import sys

import pytest
from reduction.process import held_port
from reduction.process.held_port import hold

#: Tries to take the port with every option that lets sockets share one; the last argument is the user.
THIEF = """
import os, socket, sys
host, port, user = sys.argv[1:]
os.setuid(int(user))
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sock.bind((host, int(port)))
sock.listen()
"""


@pytest.fixture
def held():
    port, sockets = hold(["127.0.0.1"])
    yield port
    for each in sockets:
        each.close()


def test_a_server_that_shares_it_may_come_and_go(held):
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", held), 10)
        with (
            socket.create_server(("127.0.0.1", held), reuse_port=True) as server,
            socket.create_connection(("127.0.0.1", held), 10),
        ):
            server.accept()[0].close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_that_does_not_share_it_is_refused(held, host):
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server((host, held))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_while_the_server_is_away(held):
    thief = [sys.executable, "-S", "-c", THIEF, "127.0.0.1", str(held)]
    done = subprocess.run([*thief, "65534"], capture_output=True, text=True, timeout=60)
    assert "Address already in use" in done.stderr
    assert subprocess.run([*thief, "0"], timeout=60).returncode == 0


def test_all_addresses_of_a_name_get_one_port(monkeypatch):
    """The first free port of one address is taken on the other one too."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        ports = iter([taken.getsockname()[1], 0])

        def addresses(host, port, **_):
            return [(socket.AF_INET, 1, 6, "", (each, port)) for each in ("127.0.0.1", "127.0.0.2")]

        class Socket(socket.socket):
            def bind(self, address):
                host, port = address
                super().bind((host, port or next(ports, 0)))

        monkeypatch.setattr(held_port.socket, "getaddrinfo", addresses)
        monkeypatch.setattr(held_port.socket, "socket", Socket)
        port, sockets = hold(["name"])
        names = [each.getsockname() for each in sockets]
        assert names == [("127.0.0.1", port), ("127.0.0.2", port)]
        assert port != taken.getsockname()[1]
        for each in sockets:
            each.close()


def test_one_address_is_enough_where_the_machine_lacks_the_other(monkeypatch):
    def addresses(host, port, **_):
        return [
            (socket.AF_INET, 1, 6, "", ("192.0.2.1", port)),
            (socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0)),
        ]

    monkeypatch.setattr(held_port.socket, "getaddrinfo", addresses)
    port, (only,) = hold(["name"])
    with only:
        assert only.getsockname()[:2] == ("::1", port)


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1", errno.EADDRINUSE), ("192.0.2.1", errno.EADDRNOTAVAIL)]
)
def test_a_port_that_cannot_be_held(host, reason):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match=os.strerror(reason)),
    ):
        hold([host], taken.getsockname()[1])
