"""A socket with TLS that has the methods of `socket.socket` used by Connection.

Python's `ssl.SSLSocket` has no calls for several buffers, and makes two system calls for each record of
16 KiB. So records pass through memory here (`ssl.MemoryBIO`), and one system call receives or sends many
of them. Per GB this costs 0.4 s of a core to send and 0.4 s to receive. SSLSocket takes 0.3 and 0.6 s,
and plain TCP 0.2 and 0.05 s.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import cast

#: Maximum records per read before the event loop serves others, since a peer may send records of one byte.
_RECORDS_PER_CALL = 256
#: Ciphertext that one system call receives.
_RECEIVED_BYTES = 256 << 10
#: Plaintext that is encrypted for one system call: a usual chunk and its header.
_ENCRYPTED_BYTES = 132 << 10
#: A record of TLS 1.3 (RFC 8446, section 5) has a header that ends with the length of the rest, and at most
#: 16 KiB of plaintext with a type and a tag.
_HEADER_BYTES, _PLAINTEXT_BYTES_MAX, _TYPE_AND_TAG_BYTES = 5, 16 << 10, 17
#: Holds the buffer in which each thread receives ciphertext.
_thread = threading.local()


def _memory() -> memoryview:
    """Return this thread's memory for ciphertext."""
    memory: memoryview | None = getattr(_thread, "memory", None)
    if memory is None:
        memory = _thread.memory = memoryview(bytearray(_RECEIVED_BYTES))
    return memory


class TlsSocket:
    """TLS over a connected, non-blocking socket, which it owns. Use it on one thread.

    The end of a connection is not authenticated (no close_notify is sent or awaited). An attacker who can
    cut the connection can end it, as with a TCP reset. Frames, not the end, carry all agreements.

    Args:
        sock: the socket.
        context: a client's or a server's context.
        server_hostname: for a client, the server's name, which the server's certificate must contain.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None
    ) -> None:
        #: The socket, for options and for ending the connection.
        self.socket = sock
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received,
            self._to_send,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        #: The error or end of the peer's direction, if it has not been reported yet.
        self._end: OSError | EOFError | None = None
        #: The arriving record: the received part of its header, the number of bytes after the header, and the
        #: number of missing bytes.
        self._header, self._record_bytes, self._record_left = b"", 0, 0
        #: Ciphertext that the kernel has not taken yet, and its number of plaintext bytes.
        self._unsent = memoryview(b"")
        self._encrypted_count = 0

    # ---- before the first message ----

    async def handshake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Agree on keys, and check the peer's certificate.

        Raises:
            OSError: the connection broke. Its subclass `ssl.SSLError` means that we reject the peer or the peer
                rejects us. With TLS 1.3 a client learns the latter only when it receives.
        """
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            finally:  # also after an error, because an alert tells the peer why
                await loop.sock_sendall(self.socket, self._to_send.read())
            if not is_done and not await self._fetch(loop):
                raise ConnectionResetError("it ended the connection during the TLS handshake")

    def peer_certificate(self) -> bytes:
        """Return the peer's certificate in DER; empty if none was required."""
        return self._tls.getpeercert(binary_form=True) or b""

    async def sendall(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        """Send all of the data."""
        self._encrypt([data])
        await loop.sock_sendall(self.socket, self._to_send.read())

    async def recv(self, loop: asyncio.AbstractEventLoop, count: int) -> bytes:
        """Receive up to `count` bytes, or none if the peer has ended the connection."""
        while True:
            try:
                return self._tls.read(count)
            except ssl.SSLWantReadError:
                if not await self._fetch(loop):
                    return b""

    async def _fetch(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Receive some ciphertext, and return whether any arrived before the peer's end."""
        data = await loop.sock_recv(self.socket, _RECEIVED_BYTES)
        self._take(memoryview(data))
        return bool(data)

    # ---- messages ----

    @property
    def has_more(self) -> bool:
        """Whether there are bytes, or the end, that the kernel no longer holds and so will not wake us for."""
        return bool(self._end is not None or self._received.pending or self._tls.pending())

    def missing(self, count: int) -> int:
        """Return the minimum bytes that the kernel must receive before `count` bytes of plaintext are available."""
        missing = self._record_left
        if missing:
            count -= self._record_bytes - _TYPE_AND_TAG_BYTES
        if count > 0:
            records = -(-count // _PLAINTEXT_BYTES_MAX)
            missing += count + records * (_HEADER_BYTES + _TYPE_AND_TAG_BYTES) - len(self._header)
        return missing

    def _take(self, data: memoryview) -> None:
        """Pass ciphertext to OpenSSL, and note where the last record ends."""
        self._received.write(data)
        while data:
            if self._record_left:
                took = min(self._record_left, len(data))
                self._record_left -= took
            else:
                took = min(_HEADER_BYTES - len(self._header), len(data))
                self._header += bytes(data[:took])
                if len(self._header) == _HEADER_BYTES:
                    self._record_bytes = self._record_left = int.from_bytes(self._header[3:], "big")
                    self._header = b""
            data = data[took:]

    def sendmsg(
        self, buffers: Sequence[memoryview | bytes], ancillary: Sequence[object] = (), flags: int = 0
    ) -> int:
        """Send the first bytes of the buffers with flags of send(2), and return their number.

        Raises:
            BlockingIOError: the kernel has not taken a whole record. The next call must begin with the same bytes.
            OSError: the connection broke.
        """
        assert not ancillary, "descriptors go over UNIX sockets only"
        if not self._unsent:
            self._encrypted_count = self._encrypt(buffers)
            self._unsent = memoryview(self._to_send.read())
        while self._unsent:
            self._unsent = self._unsent[self.socket.send(self._unsent, flags) :]
        return self._encrypted_count

    def _encrypt(self, buffers: Sequence[memoryview | bytes]) -> int:
        left = _ENCRYPTED_BYTES
        for buffer in buffers:
            part = memoryview(buffer)[:left]
            left -= len(part)
            while part:
                part = part[self._tls.write(part) :]
            if not left:
                break
        return _ENCRYPTED_BYTES - left

    def recvmsg_into(
        self, buffers: Sequence[memoryview]
    ) -> tuple[int, list[tuple[int, int, bytes]], int, None]:
        """Fill the buffers with received data, as `socket.recvmsg_into` does; 0 bytes mean the connection's end.

        Raises:
            BlockingIOError: nothing has arrived.
            OSError: the connection broke, or a record was not what the peer sent.
        """
        count, records_left = 0, _RECORDS_PER_CALL
        try:
            if self._end is not None:
                raise self._end
            for buffer in buffers:
                while buffer and records_left:
                    records_left -= 1
                    got = self._read_into(buffer)
                    buffer = buffer[got:]
                    count += got
        except BlockingIOError:
            if not count:
                raise
        except (OSError, EOFError) as error:
            if count:
                self._end = error  # the kernel reports it once, and earlier data must be delivered first
            elif isinstance(error, OSError):
                raise
        return count, [], 0, None

    def _read_into(self, buffer: memoryview) -> int:
        """Receive available data into a buffer, up to the end of a record, and return the number of bytes.

        Raises:
            EOFError: the peer has ended its direction.
            OSError: see `recvmsg_into`.
        """
        while True:
            try:
                got = cast("int", self._tls.read(len(buffer), buffer))
            except ssl.SSLWantReadError:
                memory = _memory()
                count = self.socket.recv_into(memory)
                if not count:
                    raise EOFError from None
                self._take(memory[:count])
            else:
                if not got:
                    raise EOFError
                return got

    # ---- the socket itself ----

    @property
    def family(self) -> int:
        """The socket's address family."""
        return self.socket.family

    def close(self) -> None:
        """Close the socket immediately."""
        self.socket.close()
