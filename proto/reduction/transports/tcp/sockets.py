"""What the TCP plane asks of the kernel: options of its sockets, the first bytes, and how many packets were lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys

#: Silence after which the kernel sends a probe, in seconds.
KEEPALIVE_S = 30
#: Many senders to one link fill its queue, and the tail of a burst is lost. The kernel's least retransmission time,
#: 200 ms, then stalls everybody; it waits that long because a receiver may delay its acknowledgement (Vasudevan et
#: al., "Safe and Effective Fine-grained TCP Retransmissions for Datacenter Communication", SIGCOMM 2009). Ours does
#: not. The time follows the path's round trip all the same: this is only the least. Linux 6.15 can do it; include/
#: uapi/linux/tcp.h has the numbers, Python's socket module not yet.
TCP_RTO_MIN_US, TCP_DELACK_MAX_US = 45, 46
_LINUX_OPTIONS = {TCP_RTO_MIN_US: 20_000, TCP_DELACK_MAX_US: 5_000} if sys.platform == "linux" else {}
#: Of struct tcp_info: tcpi_total_retrans and tcpi_dsack_dups. Probes of the tail are sent again for nothing when the
#: peer is busy (one in 200 chunks, n=8 on two cores); the peer then says that it has had them before.
_TCP_INFO = struct.Struct("=100xI112xI")


def prepare(sock: socket.socket) -> None:
    """Set what every data connection needs."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The call's pings notice lost peers. These are for firewalls that forget a connection without traffic.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError):  # other systems have another name for it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    for option, value_us in _LINUX_OPTIONS.items():
        with contextlib.suppress(OSError):  # an older kernel
            sock.setsockopt(socket.IPPROTO_TCP, option, value_us)


async def receive_exactly(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, count: int, ended: str
) -> bytes:
    """Return `count` bytes, of what comes before the messages.

    Raises:
        ConnectionResetError: the peer ended the connection; its text is `ended`.
        OSError: it broke.
    """
    data = b""
    while len(data) < count:
        more = await loop.sock_recv(sock, count - len(data))
        if not more:
            raise ConnectionResetError(ended)
        data += more
    return data


def packets_lost(sock: socket.socket) -> int:
    """Return the packets lost on their way to the peer, as far as the kernel knows; 0 where it does not tell."""
    with contextlib.suppress(AttributeError, OSError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        sent_again, seen_twice = _TCP_INFO.unpack(info)
        return int(max(0, sent_again - seen_twice))
    return 0
