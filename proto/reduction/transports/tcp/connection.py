"""The TCP plane's connection, the same for both sides.

Payloads are sent from and received into their final memory.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import math
import os
import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol, cast

from reduction.errors import MalformedFrame, ReductionError, ResourceExhausted
from reduction.limits import DESCRIPTORS_WAITING_MAX
from reduction.pacing import Sent, burst_bytes
from reduction.shortage import shortage
from reduction.transports.tcp.messages import HEADER_BYTES, Header, parse_header
from reduction.transports.tcp.socket_options import END_OF_PACKET, PathState, pace, path_state
from reduction.transports.tcp.tls_socket import TlsSocket

#: A connection receives at most this many messages before the event loop serves others.
MESSAGES_PER_WAKE = 8
#: Within a payload the kernel wakes us only when this many bytes, or the rest, have arrived. Otherwise
#: a frame in packets of 1.4 KB would cost a wake-up, and a transfer of the GIL, for every few packets.
WAKE_BYTES_MAX = 1 << 20
#: Maximum number of buffers per system call.
_BUFFERS_PER_SEND = 64
_NOTHING = memoryview(b"")
#: Room for the descriptors received by one system call.
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_WAITING_MAX * array.array("i").itemsize)
#: Only Linux has this flag. Other systems have no shared memory either.
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


#: Level, type and data of ancillary data for `socket.sendmsg`.
_Ancillary = tuple[int, int, "array.array[int]"]


class CannotShare(OSError):
    """This process or its host is out of resources for shared memory. The peer has broken no rule.

    The connection ends like a broken one, and the stream continues over another one without shared memory.
    """


class HasDescriptor(Protocol):
    """Owner of a descriptor, which stays open while this object lives."""

    @property
    def descriptor(self) -> int:
        """The descriptor."""


class _Parcel(NamedTuple):
    """A message that carries a descriptor."""

    data: bytes
    owner: HasDescriptor


class Handler(Protocol):
    """The owner of a connection. All calls are made on the event loop's thread."""

    def payload_memory(self, header: Header) -> memoryview:
        """Return writable memory of exactly `header.length` bytes. A ReductionError ends the connection."""

    def on_message(self, header: Header, payload: memoryview) -> None:
        """Take a whole message with the memory from `payload_memory`. A ReductionError ends the connection."""

    def on_end(self, error: Exception | None) -> None:
        """Note that the connection is closed. Called once, as the last call; None is an end between two messages."""


class Connection:
    """Messages over a connected, non-blocking socket, which it owns. Use it on the loop's thread only."""

    def __init__(
        self, sock: socket.socket | TlsSocket, loop: asyncio.AbstractEventLoop, handler: Handler
    ) -> None:
        self.queued_bytes = 0
        self.is_closed = False
        self._last_path = PathState()
        self._paced = 0
        #: Payload bytes that the kernel should send as one packet; 0 lets it decide.
        self._burst_bytes = 0
        #: The channel for the bytes, and the socket below it.
        self._channel = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._socket = sock.socket if isinstance(sock, TlsSocket) else sock
        self._fd = self._socket.fileno()
        self._loop = loop
        self._handler = handler
        self._queue: deque[memoryview | bytes | _Parcel] = deque()
        #: Number of queued messages with a descriptor.
        self._parcels = 0
        #: Received descriptors. Only processes on one host can send any.
        self._takes_descriptors = self._socket.family == socket.AF_UNIX
        self._descriptors: deque[int] = deque()
        self._waits_to_write = False
        self._is_finishing = False
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._head_count = 0
        self._header: Header | None = None
        #: The payload of the arriving message, and the part of it that is still missing.
        self._payload = self._rest = _NOTHING
        self._wake_bytes = 1

    @property
    def packets_lost(self) -> int:
        """Packets lost on the way to the peer, as far as the kernel knows; 0 where it does not report them."""
        return self.path.packets_lost

    @property
    def path(self) -> PathState:
        """The kernel's state of the path to the peer; for a closed connection, the last known state."""
        return self._last_path if self.is_closed else path_state(self._socket)

    @property
    def sent(self) -> Sent:
        """Totals of the sent data, as far as the kernel knows."""
        return self.path.sent

    def pace(self, bytes_per_s: int) -> None:
        """Limit sending to this many bytes per second from now on."""
        if bytes_per_s != self._paced and not self.is_closed:
            self._paced, self._burst_bytes = bytes_per_s, burst_bytes(bytes_per_s)
            pace(self._socket, bytes_per_s)

    def fileno(self) -> int:
        """Return the socket's descriptor, or -1 if it is closed."""
        return self._socket.fileno()

    def start(self) -> None:
        """Start receiving."""
        if not self.is_closed:
            self._loop.add_reader(self._fd, self._on_readable)
            self._go_on_if_more()

    def send(self, header: bytes, payload: memoryview | bytes) -> None:
        """Send a message, now or when the kernel takes it; `payload` must not change before. Never raises."""
        if self.is_closed or self._is_finishing:
            return
        self.queued_bytes += HEADER_BYTES + len(payload)
        self._queue.append(header)
        if 0 < self._burst_bytes < len(payload):
            view = memoryview(payload)
            starts = range(0, len(payload), self._burst_bytes)
            self._queue.extend(view[start : start + self._burst_bytes] for start in starts)
        elif payload:
            self._queue.append(payload)
        if not self._waits_to_write:
            self._flush()

    def send_descriptor(self, header: bytes, owner: HasDescriptor) -> None:
        """Send a message without payload together with a descriptor. Never raises."""
        if self.is_closed or self._is_finishing:
            return
        self.queued_bytes += HEADER_BYTES
        self._queue.append(_Parcel(header, owner))
        self._parcels += 1
        if not self._waits_to_write:
            self._flush()

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the current message. The caller closes it.

        Raises:
            MalformedFrame: the message came without a descriptor.
        """
        if not self._descriptors:
            raise MalformedFrame("a message without the descriptor that belongs to it")
        return self._descriptors.popleft()

    def finish(self) -> None:
        """End our direction after the queued messages."""
        if not self._is_finishing:
            self._is_finishing = True
            if not self._waits_to_write:
                self._flush()

    def close(self, error: Exception | None = None) -> None:
        """Close immediately, and drop the queue. Idempotent."""
        if self.is_closed:
            return
        self._last_path = self.path
        self.is_closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._queue.clear()
        self._parcels = 0
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.queued_bytes = 0
        self._payload = self._rest = _NOTHING
        self._handler.on_end(error)

    def divert(self) -> None:
        """Receive the rest of the arriving message in new memory, because its destination is needed elsewhere."""
        count = len(self._payload) - len(self._rest)
        fresh = memoryview(bytearray(self._payload))
        self._payload, self._rest = fresh, fresh[count:]

    # ---- sending ----

    def _flush(self) -> None:
        while self._queue:
            buffers, ancillary = self._next()
            flags = END_OF_PACKET if self._burst_bytes else 0
            try:
                sent = self._channel.sendmsg(buffers, ancillary, flags)
            except BlockingIOError:
                self._wait_to_write()
                return
            except OSError as error:
                if ancillary and not isinstance(error, ConnectionError):
                    error = CannotShare(f"a region cannot be shown: {shortage(error) or error}")
                # Close later, because the caller may be using objects that end with this connection.
                self._loop.call_soon(self.close, error)
                self._queue.clear()
                return
            self.queued_bytes -= sent
            if not self.queued_bytes:  # the usual case
                self._queue.clear()
                self._parcels = 0
                break
            if ancillary:  # it was sent with the first byte
                self._queue[0] = buffers[0]
                self._parcels -= 1
            while (
                sent
            ):  # TLS may report more than these buffers, namely data that an earlier call has encrypted
                buffer = cast("memoryview | bytes", self._queue[0])
                if sent < len(buffer):
                    self._queue[0] = memoryview(buffer)[sent:]
                    if self._tls is None:
                        self._wait_to_write()
                        return
                    break  # the kernel has taken all data that TLS encrypts at a time
                sent -= len(buffer)
                self._queue.popleft()
        if self._waits_to_write:
            self._waits_to_write = False
            self._loop.remove_writer(self._fd)
        if self._is_finishing:
            with contextlib.suppress(OSError):  # the peer has already closed it
                self._socket.shutdown(socket.SHUT_WR)

    def _wait_to_write(self) -> None:
        if not self._waits_to_write:
            self._waits_to_write = True
            self._loop.add_writer(self._fd, self._flush)

    def _next(self) -> tuple[list[memoryview | bytes], list[_Ancillary]]:
        """Return the data for one system call: some buffers, or one message with its descriptor."""
        items = islice(self._queue, _BUFFERS_PER_SEND)
        if not self._parcels and not self._burst_bytes:  # the usual case
            return cast("list[memoryview | bytes]", list(items)), []
        buffers: list[memoryview | bytes] = []
        room = HEADER_BYTES + self._burst_bytes if self._burst_bytes else math.inf
        for item in items:
            if isinstance(item, _Parcel):
                if buffers:
                    break
                descriptor = array.array("i", [item.owner.descriptor])
                return [item.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
            room -= len(item)
            if room < 0 and buffers:
                break
            buffers.append(item)
        return buffers, []

    # ---- receiving ----

    def _on_readable(self) -> None:
        """Receive the available data. Any error closes the connection here."""
        try:
            for _ in range(MESSAGES_PER_WAKE):
                if self.is_closed or not self._receive():
                    break
            self._end_if_reset()
            self._go_on_if_more()
        except BlockingIOError:
            return
        except (OSError, ReductionError) as error:
            self.close(error)
        except MemoryError as error:
            self.close(ResourceExhausted(f"there is no memory for a message that arrived: {shortage(error)}"))
        except Exception as error:  # a bug must cost only one connection, and not repeat forever
            self.close(error)
            raise

    def _go_on_if_more(self) -> None:
        """Receive again soon if TLS has data for which the kernel will not wake us."""
        if self._tls is not None and not self.is_closed and self._tls.has_more:
            self._loop.call_soon(self._on_readable)

    def _end_if_reset(self) -> None:
        """If the peer reset the connection, deliver the data received before, then raise the error.

        A reset that arrives together with data is reported only once, with that data. libuv, on which
        uvloop is built, does not poll a socket with an error again (github.com/libuv/libuv/pull/3797).
        """
        number = 0 if self.is_closed else self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            while not self.is_closed and self._receive():
                pass
            raise OSError(number, os.strerror(number))

    def _receive(self) -> bool:
        """Receive once, and return whether more is likely to follow."""
        head = self._head[self._head_count :]
        buffers = (self._rest, head) if self._header else (head,)
        if self._takes_descriptors:
            count, ancillary, flags, _ = self._socket.recvmsg_into(buffers, _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
            if ancillary or flags & socket.MSG_CTRUNC:
                self._keep_descriptors(ancillary, bool(flags & socket.MSG_CTRUNC))
        else:
            count = self._channel.recvmsg_into(buffers)[0]
        if not count:
            whole = self._header is None and not self._head_count
            self.close(None if whole else ConnectionResetError("it ended in the middle of a frame"))
            return False
        if self._header is not None:
            if count < len(self._rest):
                self._rest = self._rest[count:]
                missing = len(self._rest) if self._tls is None else self._tls.missing(len(self._rest))
                self._wake_at(min(missing, WAKE_BYTES_MAX))
                return False
            count -= len(self._rest)
            self._deliver()
        self._head_count += count
        if self._head_count < HEADER_BYTES or self.is_closed:
            return False
        self._head_count = 0
        self._header = parse_header(self._head)
        self._payload = self._rest = self._handler.payload_memory(self._header)
        if not self._header.length:
            self._deliver()
        return True

    def _keep_descriptors(self, ancillary: Sequence[tuple[int, int, bytes]], is_cut: bool) -> None:
        before = len(self._descriptors)
        for _, _, data in ancillary:  # a socket without further options only receives descriptors
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            self._descriptors.extend(numbers)
        if is_cut and len(self._descriptors) - before < DESCRIPTORS_WAITING_MAX:
            # There was room for more, so this process has reached its own limit (unix(7)).
            reason = shortage(OSError(errno.EMFILE, ""))
            raise CannotShare(f"the descriptor of a region could not be received: {reason}")
        if is_cut or len(self._descriptors) > DESCRIPTORS_WAITING_MAX:
            raise MalformedFrame(f"more than {DESCRIPTORS_WAITING_MAX} descriptors wait for their messages")

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
