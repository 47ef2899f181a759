"""The TCP plane's connection, the same for both sides: fixed headers, and payloads straight from and into the
memory where they belong.

A message is a header of HEADER_BYTES, little-endian, and `length` bytes. Push and Result have their payload
there and everything else in the header; all other frames are there as in the schema (`wire.py`). The header
ends with a checksum of itself, so that damage on the way is found before anything in it is believed, the
length of what follows above all. A connection begins with PREAMBLE and the key of the offer; the other side
answers PREAMBLE, and with another PREAMBLE the stream moves (proto/README.md, "Data planes").
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections import deque
from itertools import islice
from typing import NamedTuple, Protocol

from crc32c import crc32c

from reduction.errors import DataCorrupted, MalformedFrame, ReductionError
from reduction.limits import CHUNK_BYTES_MAX, REDUCER_CONTROL_BYTES_MAX
from reduction.model import Push, Result

PREAMBLE = b"RDSTCP2\n"
HEADER_BYTES = 60

CONTROL, PUSH, RESULT = 1, 2, 3
HAS_CRC = 1
_FIELDS = struct.Struct("<BBBBIIIQQQQQ")
_SEAL = struct.Struct("<I")
assert _FIELDS.size + _SEAL.size == HEADER_BYTES

#: Messages that one connection may take in a row while others wait.
MESSAGES_PER_WAKE = 8
#: Most bytes to wait for before the kernel wakes us again within a payload. A frame that comes in packets of
#: 1.4 KB would otherwise cost a wake-up and a hand-over of the GIL for every few of them.
WAKE_BYTES_MAX = 1 << 20
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
_BUFFERS_PER_SEND = 64
_NOTHING = memoryview(b"")


class Header(NamedTuple):
    """What every message begins with; fields that its kind does not use are 0."""

    kind: int
    op: int
    dtype: int
    #: HAS_CRC, or 0.
    flags: int
    length: int
    chunk: int
    #: Means nothing without HAS_CRC.
    crc: int
    epoch: int
    seq: int
    #: `held` of a Push, `minimum` of a Result.
    mark: int
    numel: int
    fingerprint: int

    @property
    def checksum(self) -> int | None:
        """Of a Push or Result, if it has one."""
        return self.crc if self.flags & HAS_CRC else None


def pack_header(*fields: int) -> bytes:
    """Return the bytes of a header with the fields of `Header`."""
    head = _FIELDS.pack(*fields)
    return head + _SEAL.pack(crc32c(head, 0, 0))


def parse_header(data: bytes | memoryview) -> Header:
    """Return what HEADER_BYTES bytes say.

    Raises:
        DataCorrupted: they are not what the peer sent.
    """
    head = data[: _FIELDS.size]
    (seal,) = _SEAL.unpack_from(data, _FIELDS.size)
    if crc32c(head, 0, 0) != seal:  # with the GIL: it takes less time than getting it back
        raise DataCorrupted("a header arrived damaged: its checksum is of other bytes")
    return Header._make(_FIELDS.unpack(head))


def push_header(push: Push) -> bytes:
    """Return the header of a Push, whose payload follows."""
    what = push.collective
    return pack_header(
        PUSH,
        what.op,
        what.dtype,
        0 if push.crc32c is None else HAS_CRC,
        push.payload.nbytes,
        push.chunk,
        push.crc32c or 0,
        push.epoch,
        push.seq,
        push.held,
        what.numel,
        what.fingerprint,
    )


def result_header(result: Result) -> bytes:
    """Return the header of a Result, whose payload follows."""
    return pack_header(
        RESULT,
        0,
        0,
        0 if result.crc32c is None else HAS_CRC,
        result.payload.nbytes,
        result.chunk,
        result.crc32c or 0,
        result.epoch,
        result.seq,
        result.minimum,
        0,
        0,
    )


def control_header(length: int) -> bytes:
    """Return the header of any other frame, encoded in `length` bytes."""
    return pack_header(CONTROL, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0)


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


class Handler(Protocol):
    """The owner of a connection. All calls on the loop's thread."""

    def place(self, header: Header) -> memoryview:
        """Return writable memory of exactly `header.length` bytes, or raise ReductionError to end it all."""

    def on_message(self, header: Header, payload: memoryview) -> None:
        """Take a whole message; `payload` is what `place` returned. ReductionError ends the connection."""

    def on_end(self, error: Exception | None) -> None:
        """Learn that the connection is closed, once, as the last call; None is an end between two messages."""


class Connection:
    """Messages over a connected, non-blocking socket, which it owns. One thread: the loop's."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, handler: Handler) -> None:
        self.queued_bytes = 0
        self.is_closed = False
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._handler = handler
        self._queue: deque[memoryview | bytes] = deque()
        self._waits_to_write = False
        self._is_finishing = False
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._head_count = 0
        self._header: Header | None = None
        #: Of the message under way: all of its payload, and what has not come yet.
        self._payload = self._rest = _NOTHING
        self._wake_bytes = 1

    @property
    def lost(self) -> int:
        """Packets that were lost on their way to the peer, as far as the kernel knows; 0 where it does not tell."""
        with contextlib.suppress(AttributeError, OSError, struct.error):
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            sent_again, seen_twice = _TCP_INFO.unpack(info)
            return int(max(0, sent_again - seen_twice))
        return 0

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 when it is closed."""
        return self._socket.fileno()

    def start(self) -> None:
        """Begin to receive."""
        if not self.is_closed:
            self._loop.add_reader(self._fd, self._on_readable)

    def send(self, header: bytes, payload: memoryview | bytes) -> None:
        """Send a message, now or when the kernel takes it; `payload` must not change before. Never raises."""
        if self.is_closed or self._is_finishing:
            return
        self.queued_bytes += HEADER_BYTES + len(payload)
        self._queue.append(header)
        if payload:
            self._queue.append(payload)
        if not self._waits_to_write:
            self._flush()

    def finish(self) -> None:
        """End our direction after what was sent."""
        if not self._is_finishing:
            self._is_finishing = True
            if not self._waits_to_write:
                self._flush()

    def close(self, error: Exception | None = None) -> None:
        """Close at once, whatever is queued. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._queue.clear()
        self.queued_bytes = 0
        self._payload = self._rest = _NOTHING
        self._handler.on_end(error)

    def divert(self) -> None:
        """Go on with the message under way in memory of our own: the owner needs what it gave for something else."""
        count = len(self._payload) - len(self._rest)
        fresh = memoryview(bytearray(self._payload))
        self._payload, self._rest = fresh, fresh[count:]

    # ---- sending ----

    def _flush(self) -> None:
        while self._queue:
            buffers = list(islice(self._queue, _BUFFERS_PER_SEND))
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                # Not now: our caller may be at work on what ends with this connection.
                self._loop.call_soon(self.close, error)
                self._queue.clear()
                return
            self.queued_bytes -= sent
            if not self.queued_bytes:  # nearly always
                self._queue.clear()
                break
            for buffer in buffers:
                if sent < len(buffer):
                    self._queue[0] = memoryview(buffer)[sent:]
                    if not self._waits_to_write:
                        self._waits_to_write = True
                        self._loop.add_writer(self._fd, self._flush)
                    return
                sent -= len(buffer)
                self._queue.popleft()
        if self._waits_to_write:
            self._waits_to_write = False
            self._loop.remove_writer(self._fd)
        if self._is_finishing:
            with contextlib.suppress(OSError):  # the peer was faster
                self._socket.shutdown(socket.SHUT_WR)

    # ---- receiving ----

    def _on_readable(self) -> None:
        """Receive what there is. Whatever ends the connection ends it here."""
        try:
            for _ in range(MESSAGES_PER_WAKE):
                if self.is_closed or not self._receive():
                    break
            self._end_if_reset()
        except BlockingIOError:
            return
        except (OSError, ReductionError) as error:
            self.close(error)
        except Exception as error:  # a bug of ours must cost one connection, and not be met again and again
            self.close(error)
            raise

    def _end_if_reset(self) -> None:
        """Take what came before a reset, and raise it.

        A reset that came together with data is reported once, with the data, and never again: libuv, under uvloop,
        polls a socket with an error no more (github.com/libuv/libuv/pull/3797).
        """
        number = 0 if self.is_closed else self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            while not self.is_closed and self._receive():
                pass
            raise OSError(number, os.strerror(number))

    def _receive(self) -> bool:
        """Receive once; return whether there is likely to be more."""
        head = self._head[self._head_count :]
        count = self._socket.recvmsg_into((self._rest, head) if self._header else (head,))[0]
        if not count:
            whole = self._header is None and not self._head_count
            self.close(None if whole else ConnectionResetError("it ended in the middle of a frame"))
            return False
        if self._header is not None:
            if count < len(self._rest):
                self._rest = self._rest[count:]
                self._wake_at(min(len(self._rest), WAKE_BYTES_MAX))
                return False
            count -= len(self._rest)
            self._deliver()
        self._head_count += count
        if self._head_count < HEADER_BYTES or self.is_closed:
            return False
        self._head_count = 0
        self._header = parse_header(self._head)
        self._payload = self._rest = self._handler.place(self._header)
        if not self._header.length:
            self._deliver()
        return True

    def _deliver(self) -> None:
        header, payload = self._header, self._payload
        assert header is not None
        self._header = None
        self._payload = self._rest = _NOTHING
        self._wake_at(1)
        self._handler.on_message(header, payload)

    def _wake_at(self, count: int) -> None:
        if count != self._wake_bytes:
            self._wake_bytes = count
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def check_payload(header: Header, frame: str) -> None:
    """Raise MalformedFrame if the payload of a Push or Result is longer than any chunk."""
    if header.length > CHUNK_BYTES_MAX:
        raise MalformedFrame(
            f"length of {frame}.payload is {header.length}, allowed are 0 to {CHUNK_BYTES_MAX}"
        )


def control_payload(header: Header) -> memoryview:
    """Return memory for a frame that is neither Push nor Result.

    Raises:
        MalformedFrame: of another kind, or too long.
    """
    if header.kind != CONTROL:
        raise MalformedFrame(f"a message of kind {header.kind}, which this side does not take")
    if header.length > REDUCER_CONTROL_BYTES_MAX:
        raise MalformedFrame(f"a frame of {header.length} bytes, allowed are {REDUCER_CONTROL_BYTES_MAX}")
    return memoryview(bytearray(header.length))
