"""Messages between a rank's process and its I/O process: whole JSON arrays, each with at most one descriptor.

Bytes may follow a message after a line feed. They become its last item.

Messages go over a pair of UNIX sockets of type SOCK_SEQPACKET (unix(7)), which preserves message boundaries
and ends when either process does. Both ends run the same version of this project's code, in processes of one
user, so messages are not validated again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

log = logging.getLogger(__name__)

#: Maximum bytes of a message. The kernel accepts no message larger than the socket's send buffer.
MESSAGE_BYTES_MAX = 128 * 1024
#: Maximum bytes that follow a message; longer data needs several messages.
PIECE_BYTES = 64 * 1024

_DESCRIPTOR = struct.Struct("i")


class Described(Protocol):
    """Something with a descriptor that stays open while the object lives."""

    @property
    def descriptor(self) -> int:
        """The descriptor's number."""


class Channel:
    """One end of a channel. `send` may be called by any thread; the callbacks run on the loop's.

    Args:
        sock: of type SOCK_SEQPACKET; it belongs to this object from here on.
        loop: the running one.
        on_message: takes a message and the descriptor that came with it, or -1 if there was none, for example because
            this process may have no more. The descriptor belongs to the callee.
        on_end: called when nothing more arrives, because the other end is gone, or because of an error that
            `on_message` raised.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[list[Any], int], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES_MAX)
        self._socket = sock
        self._loop = loop
        #: None after the end: they belong to an object that refers to this one, a cycle.
        self._callbacks: tuple[Callable[[list[Any], int], None], Callable[[Exception | None], None]] | None
        self._callbacks = on_message, on_end
        self._lock = threading.Lock()
        #: Data that the kernel has not taken yet, with the objects that must live until then.
        self._waiting: deque[tuple[bytes, Described | None]] = deque()
        self._is_closed = False
        self._descriptor = sock.fileno()

    @property
    def descriptors(self) -> list[int]:
        """The socket's descriptor, while it is open."""
        return [] if self._is_closed else [self._descriptor]

    def start(self) -> None:
        """Begin to receive. For the loop thread."""
        if not self._is_closed:
            self._loop.add_reader(self._descriptor, self._receive)

    def send(
        self, *message: Any, described: Described | None = None, piece: bytes | memoryview = b""
    ) -> None:
        """Send a message after all earlier ones. Never blocks; does nothing after the end.

        Args:
            message: its items.
            described: its descriptor is sent along. If the system does not allow that, the message is sent alone.
            piece: bytes that follow, at most PIECE_BYTES.

        Raises:
            ValueError: the message is too long.
        """
        data = json.dumps(message).encode()
        if piece:
            data = b"\n".join((data, piece))  # JSON has no line feed here
        if len(data) > MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {len(data)} bytes to or from an I/O process; the limit is {MESSAGE_BYTES_MAX}"
            )
        with self._lock:
            if self._is_closed:
                return
            self._waiting.append((data, described))
            if len(self._waiting) == 1 and not self._flush():
                self._loop.call_soon_threadsafe(self._wait_to_send)

    def send_bytes(self, seq: int, payload: memoryview) -> None:
        """Send the bytes of a collective, in as many messages as needed."""
        for offset in range(0, len(payload), PIECE_BYTES):
            self.send("bytes", seq, offset, piece=payload[offset : offset + PIECE_BYTES])

    def close(self) -> None:
        """End it. Only what the kernel has taken is still sent. Idempotent. For the loop thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._waiting.clear()
        self._callbacks = None
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._socket.close()

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has taken everything."""
        return not self._waiting

    def _flush(self) -> bool:
        """Send waiting messages; return whether that was all of them."""
        while self._waiting:
            data, described = self._waiting[0]
            try:
                if described is None:
                    self._socket.send(data)
                else:
                    socket.send_fds(self._socket, [data], [described.descriptor])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                if described is not None and not isinstance(error, ConnectionError):
                    self._waiting[0] = data, None  # for example, too many descriptors are in flight
                    continue
                # The other end is gone, which `_receive` also notices.
                self._waiting.clear()
                return True
            self._waiting.popleft()
        return True

    def _wait_to_send(self) -> None:
        if not self._is_closed:
            self._loop.add_writer(self._descriptor, self._go_on_sending)

    def _go_on_sending(self) -> None:
        with self._lock:
            if self._flush():
                self._loop.remove_writer(self._descriptor)

    def _receive(self) -> None:
        data, descriptor = b"", -1
        with suppress(OSError):  # the other end is gone, which the kernel also reports by an empty message
            try:
                data, ancillary, _, _ = self._socket.recvmsg(
                    MESSAGE_BYTES_MAX, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            descriptor = _DESCRIPTOR.unpack(ancillary[0][2])[0] if ancillary else -1
        assert self._callbacks is not None
        on_message, on_end = self._callbacks
        failure: Exception | None = None
        try:
            if data:
                head, _, piece = data.partition(b"\n")
                message = json.loads(head)
                on_message([*message, piece] if piece else message, descriptor)
                return
        except Exception as error:  # a bug of ours
            log.exception("a message between a rank and its I/O process could not be handled")
            failure = error
        self.close()
        on_end(failure)
