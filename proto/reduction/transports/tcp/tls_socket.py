"""A socket whose bytes travel in TLS records, with the calls of `socket.socket` that a Connection makes.

Python's `ssl.SSLSocket` has no calls for several buffers, and asks the kernel twice for each record of
16 KiB. So records go through memory here (`ssl.MemoryBIO`): one system call brings or takes many of
them. Per GB that costs 0.4 s of a core to send and 0.4 s to receive, SSLSocket 0.3 and 0.6 s, and
plain TCP 0.2 and 0.05 s.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import cast

#: Records that are read before the event loop serves others: a peer may send records of one byte.
_RECORDS_PER_CALL = 256
#: Ciphertext that one system call receives.
_RECEIVED_BYTES = 256 << 10
#: Plaintext that is encrypted for one system call: a usual chunk and its header.
_ENCRYPTED_BYTES = 132 << 10
#: A record of TLS 1.3 (RFC 8446, section 5): a header that ends with the length of what follows, and at most
#: 16 KiB of plaintext, with their type and a tag.
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

    The end of a connection is not authenticated (no close_notify is sent or awaited): who can cut the
    connection can end it, as with a TCP reset. What has been agreed is said by frames.

    Args:
        sock: the socket.
        context: a client's, or a server's.
        server_hostname: a client's name of the server, which the server's certificate must hold.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None
    ) -> None:
        #: For options and the connection's end.
        self.socket = sock
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received,
            self._to_send,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        #: What ended the peer's direction, if a call has still to tell it.
        self._end: OSError | EOFError | None = None
        #: The record that is arriving: what has come of its header, how many bytes follow the header, and
        #: how many of these are still to come.
        self._header, self._record_bytes, self._record_left = b"", 0, 0
        #: Ciphertext that the kernel has not taken yet, and how many bytes of plaintext are in it.
        self._unsent = memoryview(b"")
        self._encrypted_count = 0

    # ---- before the first message ----

    async def handshake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Agree on keys, and check the peer's certificate.

        Raises:
            OSError: the connection broke; `ssl.SSLError`, which is one: the peer is not accepted, or does not
                accept us. With TLS 1.3 a client learns the latter only when it receives.
        """
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            finally:  # also after an error: an alert tells the peer why
                await loop.sock_sendall(self.socket, self._to_send.read())
            if not is_done and not await self._fetch(loop):
                raise ConnectionResetError("it ended the connection during the TLS handshake")

    def peer_certificate(self) -> bytes:
        """Return the certificate that the peer has shown, in DER; empty if it had to show none."""
        return self._tls.getpeercert(binary_form=True) or b""

    async def sendall(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        """Send all of it."""
        self._encrypt([data])
        await loop.sock_sendall(self.socket, self._to_send.read())

    async def recv(self, loop: asyncio.AbstractEventLoop, count: int) -> bytes:
        """Receive up to `count` bytes; none if the peer has ended the connection."""
        while True:
            try:
                return self._tls.read(count)
            except ssl.SSLWantReadError:
                if not await self._fetch(loop):
                    return b""

    async def _fetch(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Receive some ciphertext; return whether any came before the peer's end."""
        data = await loop.sock_recv(self.socket, _RECEIVED_BYTES)
        self._take(memoryview(data))
        return bool(data)

    # ---- messages ----

    @property
    def has_more(self) -> bool:
        """Whether bytes have come, or the end, that the kernel no longer has, so that it does not wake us for them."""
        return bool(self._end is not None or self._received.pending or self._tls.pending())

    def missing(self, count: int) -> int:
        """Return how many bytes the kernel must receive, at least, before `count` bytes of plaintext are there."""
        missing = self._record_left
        if missing:
            count -= self._record_bytes - _TYPE_AND_TAG_BYTES
        if count > 0:
            records = -(-count // _PLAINTEXT_BYTES_MAX)
            missing += count + records * (_HEADER_BYTES + _TYPE_AND_TAG_BYTES) - len(self._header)
        return missing

    def _take(self, data: memoryview) -> None:
        """Give ciphertext to OpenSSL, and note where the last record ends."""
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
        """Send the first bytes of the buffers, with flags of send(2); return how many.

        Raises:
            BlockingIOError: the kernel has not taken all of a record. The next call must begin with the same bytes.
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
        """Fill the buffers with what has come, as `socket.recvmsg_into` does; 0 bytes are the connection's end.

        Raises:
            BlockingIOError: nothing has come.
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
                self._end = error  # the kernel tells it once, and what came before counts
            elif isinstance(error, OSError):
                raise
        return count, [], 0, None

    def _read_into(self, buffer: memoryview) -> int:
        """Receive into a buffer what is there, up to the end of a record; return how many bytes.

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
        """Close the socket at once."""
        self.socket.close()
