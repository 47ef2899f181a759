"""Kernel interface of the TCP plane: socket options, the first bytes, and packet losses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import NamedTuple

from reduction.pacing import Sent
from reduction.transports.tcp.tls_socket import TlsSocket

#: After this many seconds of silence the kernel sends a probe.
KEEPALIVE_S = 30
#: Socket options of Linux 6.15 and later. include/uapi/linux/tcp.h defines the numbers, and
#: Python's socket module does not have them yet.
TCP_RTO_MIN_US, TCP_DELACK_MAX_US = 45, 46
#: The minimum retransmission timeout and the maximum delay of an acknowledgement, in microseconds. Many
#: senders to one link fill its queue, and the tail of a burst is lost. The kernel's minimum
#: retransmission timeout of 200 ms then stalls all ranks. The kernel waits that long because a
#: receiver may delay its acknowledgement (Vasudevan et al., "Safe and Effective Fine-grained TCP
#: Retransmissions for Datacenter Communication", SIGCOMM 2009). Our receivers delay it by less. The
#: retransmission timeout still follows the path's round trip; only its lower bound changes.
_LINUX_OPTIONS = {TCP_RTO_MIN_US: 20_000, TCP_DELACK_MAX_US: 5_000} if sys.platform == "linux" else {}
#: The fields tcpi_rtt, tcpi_total_retrans, tcpi_bytes_acked, tcpi_min_rtt, tcpi_data_segs_out, tcpi_busy_time
#: and tcpi_dsack_dups of struct tcp_info.
_TCP_INFO = struct.Struct("=68xI28xI16xQ20xI4xI8xQ40xI")
#: Flag of send(2) that keeps Linux from adding to a packet that ends with these bytes. BSD refuses it on TCP.
END_OF_PACKET = socket.MSG_EOR if sys.platform == "linux" else 0
#: Python's socket module lacks it.
_SO_MAX_PACING_RATE = 47


def prepare(sock: socket.socket) -> None:
    """Set the options of a data connection."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Probes keep firewalls from forgetting an idle connection. The pings of the gRPC call detect a lost
    # peer.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError):  # only Linux has this name
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    set_timers(sock)


def set_timers(sock: socket.socket) -> None:
    """Let the kernel retransmit and acknowledge as early as is suitable for a data center."""
    for option, value_us in _LINUX_OPTIONS.items():
        with contextlib.suppress(OSError):  # the kernel is older
            sock.setsockopt(socket.IPPROTO_TCP, option, value_us)


async def send_all(loop: asyncio.AbstractEventLoop, sock: socket.socket | TlsSocket, data: bytes) -> None:
    """Send bytes that precede the first message.

    Raises:
        OSError: the connection broke.
    """
    await (sock.sendall(loop, data) if isinstance(sock, TlsSocket) else loop.sock_sendall(sock, data))


async def receive_exactly(
    loop: asyncio.AbstractEventLoop, sock: socket.socket | TlsSocket, count: int, ended: str
) -> bytes:
    """Return `count` bytes that precede the first message.

    Raises:
        ConnectionResetError: the peer ended the connection; its text is `ended`.
        OSError: the connection broke.
    """
    data = b""
    while len(data) < count:
        left = count - len(data)
        more = await (sock.recv(loop, left) if isinstance(sock, TlsSocket) else loop.sock_recv(sock, left))
        if not more:
            raise ConnectionResetError(ended)
        data += more
    return data


class PathState(NamedTuple):
    """The kernel's state of the path to a peer. It is not known for UNIX sockets, or outside Linux."""

    #: The smoothed round trip, in seconds; 0 if the kernel does not report it.
    rtt_s: float = 0.0
    #: Packets that were retransmitted.
    retransmits: int = 0
    #: Retransmitted packets that the peer had already received.
    duplicates: int = 0
    #: Bytes that the peer has acknowledged.
    acked_bytes: int = 0
    #: Segments with data that were sent, including retransmissions.
    segments: int = 0
    #: Seconds during which data waited to be sent or acknowledged.
    busy_s: float = 0.0
    #: The shortest round trip, in seconds; 0 if the kernel does not report it.
    least_rtt_s: float = 0.0

    @property
    def sent(self) -> Sent:
        """The totals for `reduction.pacing`."""
        return Sent(self.acked_bytes, self.segments, self.packets_lost, self.busy_s)

    @property
    def packets_lost(self) -> int:
        """Packets lost on the way to the peer, as far as the kernel knows."""
        # If the peer is busy, TCP retransmits the tail of a burst although nothing was lost (one in
        # 200 chunks, n=8 on two cores). The peer then reports a duplicate.
        return max(0, self.retransmits - self.duplicates)


def path_state(sock: socket.socket) -> PathState:
    """Return the kernel's state of a socket's path, with zeros where it does not report any."""
    with contextlib.suppress(AttributeError, OSError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        rtt_us, retransmits, acked, least_us, segments, busy_us, duplicates = _TCP_INFO.unpack(info)
        return PathState(
            rtt_us / 1e6, retransmits, duplicates, acked, segments, busy_us / 1e6, least_us / 1e6
        )
    return PathState()


def pace(sock: socket.socket, rate: int) -> None:
    """Limit this socket to `rate` payload bytes per second; TCP does the pacing itself."""
    with contextlib.suppress(OSError):  # the kernel is older, or not Linux
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate))
