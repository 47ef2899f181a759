"""The TCP plane of the reducer: a data port, and streams that moved there from their gRPC call.

A connection must present the key of an offer after the preamble, and each key admits one
connection. Payloads are received into memory of the engine's pool and sent from it, without copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import Callable

from reduction import wire
from reduction.errors import MalformedFrame
from reduction.limits import DATA_KEY_BYTES, DATA_KEY_S, DATA_STRANGERS_MAX
from reduction.model import Push, ReducerFrame, Result
from reduction.transports import tcp

from reducer.resources.buffers import BufferPool

log = logging.getLogger(__name__)

#: How long to accept no connection after the process ran out of descriptors, in seconds.
PAUSE_S = 1.0
_KEY_ID_BYTES = 16

Attach = Callable[[socket.socket], None]


class DataPort:
    """The listening socket of the TCP plane."""

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._strangers: dict[asyncio.Task[Attach | None], socket.socket] = {}
        #: Offers by the first bytes of their keys, so that the rest is compared in constant time.
        self._offers: dict[bytes, tuple[bytes, Attach]] = {}

    def start(self, host: str, port: int) -> None:
        """Listen; port 0 picks a free one.

        Raises:
            OSError: the address cannot be bound.
        """
        families = {info[0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        # Like gRPC, [::] takes IPv4 connections too.
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        self._listener = socket.create_server(
            (host, port), family=family, backlog=1024, dualstack_ipv6=is_dual
        )
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._resume()

    def stop(self) -> None:
        """Accept no new connections. Streams that moved end with their calls."""
        for stranger in self._strangers:
            stranger.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def offer(self, attach: Attach) -> bytes:
        """Return a new key. `attach` gets the socket of the one connection that presents it."""
        key = secrets.token_bytes(DATA_KEY_BYTES)
        self._offers[key[:_KEY_ID_BYTES]] = key, attach
        return key

    def withdraw(self, key: bytes) -> None:
        """Forget an offer, taken or not."""
        self._offers.pop(key[:_KEY_ID_BYTES], None)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the peer has left already
            return
        except OSError as error:  # no descriptor is left: present connections must go on
            log.warning("data port cannot accept reason=%s", error)
            self._loop.remove_reader(listener.fileno())
            self._loop.call_later(PAUSE_S, self._resume)
            return
        if len(self._strangers) >= DATA_STRANGERS_MAX:
            log.warning("closed a data connection reason=%d others have shown no key yet", DATA_STRANGERS_MAX)
            sock.close()
            return
        task = self._loop.create_task(self._greet(sock))
        self._strangers[task] = sock
        task.add_done_callback(self._on_greeted)

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept, self._listener)

    def _on_greeted(self, task: asyncio.Task[Attach | None]) -> None:
        sock = self._strangers.pop(task)
        attach = None if task.cancelled() else task.result()
        if attach is None:
            sock.close()
        else:
            attach(sock)

    async def _greet(self, sock: socket.socket) -> Attach | None:
        try:
            async with asyncio.timeout(DATA_KEY_S):
                return await self._let_in(sock)
        except TimeoutError:
            self._refuse(sock, f"no key within {DATA_KEY_S:g} s")
        except (OSError, MalformedFrame) as error:
            self._refuse(sock, str(error))
        return None

    async def _let_in(self, sock: socket.socket) -> Attach:
        tcp.prepare(sock)
        if await self._receive(sock, len(tcp.PREAMBLE)) != tcp.PREAMBLE:
            raise MalformedFrame("it does not begin as a data connection")
        key = await self._receive(sock, DATA_KEY_BYTES)
        known, attach = self._offers.get(key[:_KEY_ID_BYTES], (b"", None))
        if attach is None or not hmac.compare_digest(known, key):
            raise MalformedFrame("its key is of no offer that is open")
        await self._loop.sock_sendall(sock, tcp.PREAMBLE)
        # The worker confirms last. If the answer took too long for it, it may try again with the
        # key.
        if await self._receive(sock, len(tcp.PREAMBLE)) != tcp.PREAMBLE:
            raise MalformedFrame("it does not confirm the move")
        self.withdraw(key)
        return attach

    async def _receive(self, sock: socket.socket, count: int) -> bytes:
        return await tcp.receive_exactly(self._loop, sock, count, "it ended before it was let in")

    @staticmethod
    def _refuse(sock: socket.socket, reason: str) -> None:
        peer: object = "?"
        with contextlib.suppress(OSError):
            peer = sock.getpeername()[0]
        log.warning("closed a data connection peer=%s reason=%s", peer, reason)


class DataSession:
    """One moved stream: frames of the engine go out, messages of the worker come in."""

    def __init__(
        self,
        sock: socket.socket,
        pool: BufferPool,
        receive: Callable[..., None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.connection = tcp.Connection(sock, asyncio.get_running_loop(), self)
        self._pool = pool
        self._receive = receive
        self._on_end = on_end

    def send(self, frame: ReducerFrame) -> None:
        """Send a frame. A result's payload is sent without a copy."""
        if isinstance(frame, Result):
            self.connection.send(tcp.result_header(frame), frame.payload)
        else:
            data = wire.reducer_frame_to_wire(frame)
            self.connection.send(tcp.control_header(len(data)), data)

    def payload_memory(self, header: tcp.Header) -> memoryview:
        """See `tcp.Handler`."""
        if header.kind != tcp.PUSH:
            return tcp.control_payload(header)
        tcp.check_payload(header, "Push")
        return self._pool.take(header.length)

    def on_message(self, header: tcp.Header, payload: memoryview) -> None:
        """See `tcp.Handler`."""
        if header.kind == tcp.PUSH:
            collective = wire.collective(header.op, header.dtype, header.numel, header.fingerprint)
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
        else:
            self._receive(wire.worker_frame_from_wire(bytes(payload)))

    def on_end(self, error: Exception | None) -> None:
        """See `tcp.Handler`."""
        self._on_end(error)
