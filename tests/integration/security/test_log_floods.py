"""Repeated actions of strangers appear only a few times in the log of a real reducer, on every entry point."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import closing

import grpc
import pytest
from reduction import wire
from reduction.model import LobbyRequest, Welcome
from reduction.process.place import local_socket
from reduction.security.tokens import to_metadata
from reduction.v1 import reduction_pb2 as pb
from support.network.certificates import Authority
from support.network.channels import NO_PROXY
from support.network.raw import RawStream, join

#: Maximum lines per kind, however often it occurs; tests/unit/reducer/test_journal.py makes 10,000 calls.
LINES_MAX = 20
CALLS = 100
TOKEN = "t0ken" * 8


class Target:
    """A reducer, and what a stranger knows about it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.host, self.port = address.rpartition(":")[0], int(address.rpartition(":")[2])
        self.channel = grpc.insecure_channel(address, options=NO_PROXY)
        self.welcome: Welcome | None = None

    def call(self, method: str, data: bytes, token: str | None = None) -> None:
        """Call a method with one message, and wait for the end."""
        path = f"/{pb.DESCRIPTOR.services_by_name['Reduction'].full_name}/{method}"
        answers = self.channel.stream_stream(path)(iter([data]), timeout=20, metadata=to_metadata(token))
        try:
            for _ in answers:
                pass
        except grpc.RpcError:
            pass

    def connect(self, port: int, data: bytes) -> None:
        """Send data on a connection, and wait for its end."""
        with socket.create_connection((self.host, port), timeout=20) as connection:
            _say(connection, data)


def _say(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
        while connection.recv(1 << 16):
            pass
    except OSError:
        pass


def data_port(target: Target, number: int) -> None:
    target.connect(target.welcome.data_port, b"GET / HTTP/1.1\r\n\r\n%d" % number)


def same_host(target: Target, number: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(local_socket(target.welcome.incarnation))
        _say(connection, b"x" * 40)


def garbage(target: Target, number: int) -> None:
    target.call("Session", os.urandom(40))


def names(target: Target, number: int) -> None:
    target.call("Session", wire.worker_frame_to_wire(join(f"job-{number}", host=f"host-{number}")))


def unprintable(target: Target, number: int) -> None:
    target.call("Session", wire.worker_frame_to_wire(join("\x1b" * (1 + number % 100))))


def status(target: Target, number: int) -> None:
    target.call("Status", b"", os.urandom(16).hex())


def drain(target: Target, number: int) -> None:
    target.call("Drain", b"", os.urandom(16).hex())


def lobby(target: Target, number: int) -> None:
    request = LobbyRequest(f"job-{number}", bytes(16), b"x")
    target.call("Lobby", wire.lobby_request_to_wire(request), TOKEN)


def others_jobs(target: Target, number: int) -> None:
    target.call("Session", wire.worker_frame_to_wire(join(f"job-{number}")), TOKEN)


def no_tls(target: Target, number: int) -> None:
    target.connect(target.port, b"GET / HTTP/1.1\r\n\r\n")


def no_certificate(target: Target, number: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((target.host, target.port), timeout=20) as plain:
        try:
            with context.wrap_socket(plain) as connection:
                _say(connection, b"")
        except OSError:
            pass


KINDS = {
    "--insecure": [data_port, same_host, garbage, names, unprintable],
    "--token-file": [garbage, status, drain, lobby, others_jobs],
    "--tls-cert": [no_tls, no_certificate],
}


@pytest.mark.parametrize("guard", KINDS)
def test_a_flood_of_each_kind_logs_only_a_few_lines(serve, tmp_path, guard):
    options = [guard]
    if guard == "--token-file":
        path = tmp_path / "tokens"
        path.touch(0o600)
        path.write_text(f"mine:{TOKEN}\n*:{'0ther' * 8}\n")
        options += [str(path)]
    if guard == "--tls-cert":
        files = Authority(tmp_path).files("127.0.0.1")
        options += [files.cert, "--tls-key", files.key, "--tls-ca", files.ca]
    reducer = serve(*options)
    target = Target(reducer.address)
    if guard == "--insecure":
        with closing(RawStream(reducer.address)) as stream:
            stream.send(join("to learn the port"))
            target.welcome = stream.read_until(Welcome)
    for kind in KINDS[guard]:
        before = reducer.log.text.count("\n")
        for number in range(CALLS):
            kind(target, number)
        lines = reducer.log.text.splitlines()[before:]
        assert len(lines) <= LINES_MAX, (kind.__name__, lines)
    target.channel.close()
