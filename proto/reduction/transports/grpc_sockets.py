"""Find the sockets of gRPC connections, which gRPC does not expose, among this process's descriptors by their peers.

Through them the kernel can pace a stream on gRPC, and report its losses, as on our own data connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator
from urllib.parse import unquote

from reduction.pacing import Sent
from reduction.transports.tcp.socket_options import pace, path_state, set_timers

Address = tuple[str, int]
#: Number of uses without a search after a search without result; about a second at the rate of ticks.
PAUSES = 25


def address_of(peer: str) -> Address:
    """Return the address in gRPC's name of a peer, such as "ipv4:10.0.0.5:40000"."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdecimal() else 0


def sockets_to(peers: Collection[Address]) -> list[int]:
    """Return the descriptors of this process's sockets that are connected to one of these addresses."""
    numbers = []
    for name in os.listdir("/proc/self/fd") if peers and os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError), _borrowed(int(name), peers):
            numbers.append(int(name))
    return numbers


class GrpcSockets:
    """The sockets of this process to a peer: one, or one per communicator.

    gRPC does not reveal which communicator owns which socket. So they are treated as one, and all are paced alike,
    since other sockets carry no data if their streams have moved to a data port. They are never closed or kept open
    here. Each use checks whether a descriptor is still such a socket.

    Args:
        peers: the addresses that the peer may have; more may be added later.
    """

    def __init__(self, peers: Collection[Address]) -> None:
        self._peers = peers
        self._numbers: list[int] = []
        self._paced = 0
        #: Remaining uses without a search, because a search examines all descriptors.
        self._pauses = 0

    @property
    def sent(self) -> Sent | None:
        """Totals of the data sent on the sockets; None if none is found."""
        paths: list[Sent] = []
        for number in self._numbers:
            with contextlib.suppress(OSError), _borrowed(number, self._peers) as sock:
                paths.append(path_state(sock).sent)
        if not paths or len(paths) < len(self._numbers):
            self._find()
            return None
        return Sent(
            sum(path.acked_bytes for path in paths),
            sum(path.segments for path in paths),
            sum(path.lost for path in paths),
            max(path.busy_s for path in paths),
        )

    def pace(self, bytes_per_s: int) -> None:
        """Limit each socket to this many bytes per second from now on."""
        if bytes_per_s == self._paced:
            return
        for number in self._numbers:
            with contextlib.suppress(OSError), _borrowed(number, self._peers) as sock:
                pace(sock, bytes_per_s)
                self._paced = bytes_per_s

    def _find(self) -> None:
        self._pauses -= 1
        if self._pauses >= 0:
            return
        self._pauses = PAUSES
        self._numbers, self._paced = sockets_to(self._peers), 0
        for number in self._numbers:
            with contextlib.suppress(OSError), _borrowed(number, self._peers) as sock:
                set_timers(sock)


@contextlib.contextmanager
def _borrowed(number: int, peers: Collection[Address]) -> Iterator[socket.socket]:
    """Yield a descriptor as a socket, and leave it open.

    Raises:
        OSError: the descriptor is not a socket connected to one of these addresses.
    """
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(f"descriptor {number} is not a socket")
    with socket.socket(fileno=os.dup(number)) as sock:
        peer = sock.getpeername()
        if not isinstance(peer, tuple) or (peer[0].removeprefix("::ffff:"), peer[1]) not in peers:
            raise OSError(f"descriptor {number} leads elsewhere")
        yield sock
