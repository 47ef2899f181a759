"""Finding and using the socket of a connection that other code owns."""

import os
import socket

import pytest
from reduction.transports import grpc_sockets
from reduction.transports.grpc_sockets import PAUSES, GrpcSockets, address_of, sockets_to


@pytest.fixture
def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as ours:
            theirs, _ = server.accept()
            with theirs:
                yield ours, theirs


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.5:40000", ("10.0.0.5", 40000)),
        ("ipv6:%5B::1%5D:40000", ("::1", 40000)),
        ("ipv6:[::ffff:10.0.0.5]:40000", ("10.0.0.5", 40000)),
        ("unix:/run/reducer", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_grpc_peer_strings_are_parsed(peer, address):
    assert address_of(peer) == address


def test_a_socket_is_found_by_its_peer_and_stays_open(connected):
    ours, theirs = connected
    assert sockets_to({ours.getpeername()}) == [ours.fileno()]
    assert sockets_to({theirs.getpeername()}) == [theirs.fileno()]
    assert sockets_to({("127.0.0.1", 1)}) == sockets_to(set()) == []
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"


def test_it_is_paced(connected):
    ours, _ = connected
    subject = GrpcSockets({ours.getpeername()})
    subject.pace(1000)  # not found yet
    assert subject.sent is None
    for rate in (1000, 1000, 2000):
        subject.pace(rate)
        option = ours.getsockopt(socket.SOL_SOCKET, 47, 8)
        assert int.from_bytes(option, "little") == rate


def test_several_connections_to_a_peer_are_taken_together(connected):
    ours, theirs = connected
    with socket.create_connection(ours.getpeername()) as other:
        subject = GrpcSockets({ours.getpeername()})
        assert subject.sent is None  # that was the search
        for sock in (ours, other):
            sock.sendall(b"x")
        theirs.recv(1)
        assert subject.sent.segments == 2
        subject.pace(1000)
        options = [sock.getsockopt(socket.SOL_SOCKET, 47, 8) for sock in (ours, other)]
        assert [int.from_bytes(option, "little") for option in options] == [1000, 1000]
    assert subject.sent is None  # one has left


def test_a_failed_search_is_not_repeated_at_once(connected, monkeypatch):
    searches = []
    monkeypatch.setattr(grpc_sockets, "sockets_to", lambda peers: searches.append(peers) or [])
    subject = GrpcSockets({("127.0.0.1", 1)})
    for _ in range(2 * PAUSES + 2):
        assert subject.sent is None
    assert len(searches) == 2


def test_a_descriptor_that_has_become_another_file_is_left_alone(connected):
    ours, theirs = connected
    subject = GrpcSockets({ours.getpeername()})
    assert subject.sent is None
    assert subject.sent is not None
    number = ours.fileno()
    os.dup2(theirs.fileno(), number)
    assert subject.sent is None
    subject.pace(1000)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), number)
    assert subject.sent is None
    assert int.from_bytes(theirs.getsockopt(socket.SOL_SOCKET, 47, 8), "little") != 1000
