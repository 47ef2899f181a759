"""The TCP plane of the reducer: a data port, and streams that moved there from their gRPC call.

A connection must present the key of an offer after the preamble, and each key admits one
connection. Payloads are received into memory of the engine's pool and sent from it, without copies.

With TLS a connection begins with a handshake, and must show the certificate of the call that was
offered the key.

Without TLS, workers on the same host reach the port as a UNIX socket, and find payloads in memory that
both sides share (reduction/transports/shared).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from reduction import wire
from reduction.codecs import CODECS
from reduction.errors import MalformedFrame
from reduction.limits import DATA_KEY_BYTES, DATA_KEY_S, DATA_STRANGERS_MAX
from reduction.log_limit import LINES, Repeats
from reduction.model import Push, ReducerFrame, Result
from reduction.process.place import local_socket
from reduction.transports import shared, tcp

from reducer.binding import listen
from reducer.resources.buffers import BufferPool

log = logging.getLogger(__name__)

#: Pause in accepting connections after the process ran out of descriptors, in seconds.
PAUSE_S = 1.0
#: How long new streams of this host use TCP after the process ran out of resources for shared memory, in seconds.
UNSHARED_S = 60.0
_KEY_ID_BYTES = 16
_BACKLOG = 1024

Attach = Callable[[socket.socket | tcp.TlsSocket], None]


class _Offer(NamedTuple):
    """The credentials that a connection must show, and its stream."""

    key: bytes
    #: Certificate in DER; empty without TLS.
    certificate: bytes
    attach: Attach
    #: The job of the stream.
    job: str


class DataPort:
    """The listening sockets of the TCP plane.

    Args:
        tls: returns the context for new handshakes; None for connections without TLS.
        lines: limits log lines that peers can cause.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None, lines: Repeats = LINES) -> None:
        self.port = 0
        self._tls = tls
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        #: TCP listeners, one per address, and one for processes on the same host if the system supports that.
        self._listeners: list[socket.socket] = []
        self._strangers: dict[asyncio.Task[Callable[[], None] | None], socket.socket] = {}
        #: Jobs whose new streams currently share no memory.
        self._unshared: set[str] = set()
        #: Offers by the first bytes of their keys, so that the rest is compared in constant time.
        self._offers: dict[bytes, _Offer] = {}

    def start(self, host: str, port: int, incarnation: bytes = b"", *, is_held: bool = False) -> None:
        """Listen; port 0 picks a free one.

        Args:
            host: host whose addresses are all listened at.
            port: TCP port.
            incarnation: of the reducer, for workers on this host; if empty, listen only on TCP.
            is_held: whether the parent process holds the port, if it is not 0.

        Raises:
            OSError: an address cannot be bound.
        """
        self._listeners += listen(host, port, reuse_port=is_held and port > 0)
        self.port = self._listeners[0].getsockname()[1]
        if incarnation and self._tls is None:  # TLS promises that all data on a socket is encrypted
            self._listeners.append(_local_listener(incarnation))
        for listener in self._listeners:
            listener.setblocking(False)
            self._resume(listener)

    def stop(self) -> None:
        """Accept no new connections. Moved streams end with their calls."""
        for stranger in self._strangers:
            stranger.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def share_less(self, job: str, reason: str) -> None:
        """Make new streams of a job use TCP for UNSHARED_S. Streams that share memory continue.

        The local listener stays open, because a process that took its name would receive their keys.
        """
        if job not in self._unshared:
            self._warn(
                "unshared", "", "for %g s new streams come by TCP job=%s reason=%s", UNSHARED_S, job, reason
            )
            self._unshared.add(job)
            self._loop.call_later(UNSHARED_S, self._unshared.discard, job)

    def offer(self, attach: Attach, certificate: bytes = b"", job: str = "") -> bytes:
        """Return a new key.

        Args:
            attach: receives the socket of the one connection that presents the key.
            certificate: certificate in DER that the connection must show; empty without TLS.
            job: the job of the stream.
        """
        key = secrets.token_bytes(DATA_KEY_BYTES)
        self._offers[key[:_KEY_ID_BYTES]] = _Offer(key, certificate, attach, job)
        return key

    def withdraw(self, key: bytes) -> None:
        """Forget an offer, whether it was used or not."""
        self._offers.pop(key[:_KEY_ID_BYTES], None)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the peer has already left
            return
        except OSError as error:  # no descriptor is left, but existing connections must continue
            self._warn("cannot accept", "", "data port cannot accept reason=%s", error)
            self._loop.remove_reader(listener.fileno())
            self._loop.call_later(PAUSE_S, self._resume, listener)
            return
        if len(self._strangers) >= DATA_STRANGERS_MAX:
            text = "closed a data connection reason=%d others have shown no key yet"
            self._warn("too many data connections", "", text, DATA_STRANGERS_MAX)
            sock.close()
            return
        task = self._loop.create_task(self._greet(sock))
        self._strangers[task] = sock
        task.add_done_callback(self._on_greeted)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _on_greeted(self, task: asyncio.Task[Callable[[], None] | None]) -> None:
        sock = self._strangers.pop(task)
        attach = None if task.cancelled() else task.result()
        if attach is None:
            sock.close()
        else:
            attach()

    async def _greet(self, sock: socket.socket) -> Callable[[], None] | None:
        try:
            async with asyncio.timeout(DATA_KEY_S):
                return await self._let_in(sock)
        except TimeoutError:
            self._refuse(sock, f"no key within {DATA_KEY_S:g} s")
        except (OSError, MalformedFrame) as error:
            self._refuse(sock, str(error))
        return None

    async def _let_in(self, sock: socket.socket) -> Callable[[], None]:
        tcp.prepare(sock)
        channel: socket.socket | tcp.TlsSocket = sock
        certificate = b""
        if self._tls is not None:
            channel = tcp.TlsSocket(sock, self._tls())
            await channel.handshake(self._loop)
            certificate = channel.peer_certificate()
        if await self._receive(channel, len(tcp.PREAMBLE)) != tcp.PREAMBLE:
            raise MalformedFrame("it does not begin as a data connection")
        key = await self._receive(channel, DATA_KEY_BYTES)
        offer = self._offers.get(key[:_KEY_ID_BYTES])
        if offer is None or not hmac.compare_digest(offer.key, key):
            raise MalformedFrame("its key matches no open offer")
        if certificate != offer.certificate:
            raise MalformedFrame("its certificate is not that of the call that was offered the key")
        if sock.family == socket.AF_UNIX and offer.job in self._unshared:
            raise MalformedFrame(f"job {offer.job} shares no memory for now; it comes to the port")
        await tcp.send_all(self._loop, channel, tcp.PREAMBLE)
        # The worker confirms last. If the answer took too long, it may retry with the same key.
        if await self._receive(channel, len(tcp.PREAMBLE)) != tcp.PREAMBLE:
            raise MalformedFrame("it does not confirm the move")
        self.withdraw(key)
        return partial(offer.attach, channel)

    async def _receive(self, channel: socket.socket | tcp.TlsSocket, count: int) -> bytes:
        return await tcp.receive_exactly(self._loop, channel, count, "it ended before it was let in")

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        peer = "?"
        with contextlib.suppress(OSError):
            peer = sock.getpeername()[0] if sock.family != socket.AF_UNIX else "this host"
        self._warn("data connection", peer, "closed a data connection peer=%s reason=%s", peer, reason)

    def _warn(self, kind: str, peer: str, text: str, *args: object) -> None:
        self._lines.log(log, logging.WARNING, kind, peer, text, *args)


def _local_listener(incarnation: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(local_socket(incarnation))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class DataSession:
    """One moved stream, with frames from the engine and messages from the worker.

    A worker on this host reads results in place. It counts copied results in its own memory, and until
    then they are lent and must not be overwritten. If the stream ends first, that memory is not reused,
    because the worker may still be reading it.
    """

    def __init__(
        self,
        sock: socket.socket | tcp.TlsSocket,
        pool: BufferPool,
        header: Callable[[Result, int], bytes],
        receive: Callable[..., None],
        on_end: Callable[[Exception | None], None],
        charge: Callable[[int], None],
    ) -> None:
        self.connection = tcp.Connection(sock, asyncio.get_running_loop(), self)
        self._pool = pool
        self._header = header
        self._sharing = (
            shared.Sharing(self.connection, pool.memory, shared.PeerMemory(charge))
            if sock.family == socket.AF_UNIX
            else None
        )
        #: The worker's count; None while results have to be sent.
        self._counter: memoryview | None = None
        #: Lent results with their numbers.
        self._lent: deque[tuple[int, memoryview]] = deque()
        self._lent_count = 0
        self._lent_bytes = 0
        self._receive = receive
        self._on_end = on_end

    def send(self, frame: ReducerFrame) -> None:
        """Send a frame. A result's payload is sent without a copy."""
        if isinstance(frame, Result):
            if self._sharing is not None and self._counter is not None:
                place = self._sharing.place(frame.payload)
                if place is not None:
                    self._lend(frame.payload)
                    self.connection.send(self._header(frame, len(place)), place)
                    return
            self.connection.send(self._header(frame, 0), frame.payload)
        else:
            data = wire.reducer_frame_to_wire(frame)
            self.connection.send(tcp.control_header(data), data)

    @property
    def unread_bytes(self) -> int:
        """Bytes that the worker has not yet received or copied."""
        self._take_back()
        return self.connection.queued_bytes + self._lent_bytes

    def _take_back(self) -> None:
        """Release the results that the worker has copied."""
        copied = 0 if self._counter is None else self._counter[0]
        while self._lent and self._lent[0][0] <= copied:
            self._lent_bytes -= self._lent.popleft()[1].nbytes

    def _lend(self, payload: memoryview) -> None:
        self._take_back()
        self._lent_count += 1
        self._lent_bytes += payload.nbytes
        self._lent.append((self._lent_count, payload))

    def payload_memory(self, header: tcp.Header) -> memoryview:
        """See `tcp.Handler`."""
        if self._sharing is not None and (memory := self._sharing.memory_for(header)) is not None:
            return memory
        if header.flags & tcp.IS_PLACE or header.kind != tcp.PUSH:
            return tcp.control_payload(header)
        tcp.check_payload(header, "Push")
        return self._pool.take(header.length)

    def on_message(self, header: tcp.Header, payload: memoryview) -> None:
        """See `tcp.Handler`."""
        if header.kind == tcp.PUSH:
            collective = wire.collective(header.op, header.dtype, header.numel, header.fingerprint)
            if self._sharing is not None and header.flags & tcp.IS_PLACE:
                payload = self._sharing.payload(payload)
                if not CODECS[collective.dtype].is_plain:  # it must not change after the check
                    payload = self._copy(payload)
            self._receive(
                Push(
                    header.epoch,
                    header.seq,
                    header.chunk,
                    collective,
                    header.held_or_minimum,
                    payload,
                    header.checksum,
                )
            )
        elif self._sharing is not None and header.kind in (tcp.SHOW, tcp.HIDE):
            self._sharing.on_message(header)
        elif self._sharing is not None and header.kind == tcp.COUNTER:
            self._counter = _as_counter(self._sharing.payload(payload))
            self._pool.memory.want()
        else:
            self._receive(wire.worker_frame_from_wire(tcp.control_frame(header, payload)))

    def _copy(self, payload: memoryview) -> memoryview:
        memory = self._pool.take(payload.nbytes)
        shared.copy(payload, memory)
        return memory

    def on_end(self, error: Exception | None) -> None:
        """See `tcp.Handler`."""
        self._take_back()
        for _, payload in self._lent:
            self._pool.spoil(payload)
        self._lent.clear()
        self._sharing = self._counter = None  # or the worker's memory would stay until garbage collection
        self._on_end(error)


def _as_counter(memory: memoryview) -> memoryview:
    """Return 8 bytes of a worker as a number.

    Raises:
        MalformedFrame: there are not exactly 8 bytes.
    """
    if memory.nbytes != 8:
        raise MalformedFrame(f"the counter has {memory.nbytes} bytes instead of 8")
    return memory.cast("Q")
