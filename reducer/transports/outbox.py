"""The queue of one stream's frames until its peer takes them, which is the engine's `Sink` for a worker.

A stream begins on its gRPC call. The worker may present the key from the Welcome at the data port,
immediately or later. Each direction of the call then carries one more frame, Moved, and all later frames
go over that connection. Only an Abort that explains the end of the connection goes over the call again. A
rank that reads slowly fills only its own outbox. Credit bounds the outbox, and a peer that exceeds it is
disconnected.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from reduction import wire
from reduction.errors import OutOfOrder, ReductionError
from reduction.limits import CHUNK_BYTES_MAX, DATA_KEY_S, UNREAD_CONTROL_BYTES_MAX, UNREAD_NEWS_BYTES
from reduction.model import Join, Moved, Peer, Peers, ReducerFrame, Result, Welcome, WorkerFrame
from reduction.transports import tcp
from reduction.transports.grpc_sockets import GrpcSockets, address_of

from reducer.core.fair_shares import NOBODY
from reducer.engine import ON_SHARED_MEMORY, ON_TCP, Engine, Owner
from reducer.transports.lives import Life
from reducer.transports.tcp_server import DataPort, DataSession

#: How often the outbox checks whether withheld reports can be sent, in seconds.
HELD_BACK_S = 0.05


class Path(NamedTuple):
    """The kernel's state of the TCP connection to a worker."""

    owner: Owner
    #: The smoothed round trip, in seconds.
    rtt_s: float
    #: Packets that were lost and retransmitted.
    retransmits: int


class Encoder:
    """Encoder of frames for gRPC, and of headers of results. A frame for n ranks is encoded once."""

    def __init__(self) -> None:
        self._frame: ReducerFrame | None = None
        self._data = b""
        self._headed: Result | None = None
        self._place_bytes = 0
        self._header = b""

    def header(self, result: Result, place_bytes: int = 0) -> bytes:
        """Return the header from `tcp.result_header`."""
        if result is not self._headed or place_bytes != self._place_bytes:
            self._headed, self._place_bytes = result, place_bytes
            self._header = tcp.result_header(result, place_bytes)
        return self._header

    def encode(self, frame: ReducerFrame) -> bytes:
        """Return the frame's bytes."""
        if not isinstance(frame, Result):
            return wire.reducer_frame_to_wire(frame)
        if frame is not self._frame:
            self._frame, self._data = frame, wire.reducer_frame_to_wire(frame)
        return self._data


class Outbox:
    """One worker's stream between transport and engine."""

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        data_port: DataPort | None,
        siblings: tuple[int, ...] = (),
        peer: str = "",
        certificate: bytes = b"",
    ) -> None:
        #: Why the stream ended.
        self.error: ReductionError | None = None
        #: Set when the stream has moved to the data port and that connection is closed.
        self.data_ended = asyncio.Event()
        self._engine = engine
        self._encoder = encoder
        self._data_port = data_port
        self._siblings = siblings
        #: Certificate of the call's peer in DER; empty without TLS.
        self._certificate = certificate
        self._key = b""
        self._data: DataSession | None = None
        #: Owner of the stream when it moved.
        self._owner: Owner | None = None
        #: Packets that its connection had lost at the last query.
        self._packets_lost = 0
        #: Whether the worker sends nothing more on the call.
        self._has_sent_moved = False
        #: Expires if the worker has moved but its connection does not arrive.
        self._moving: asyncio.TimerHandle | None = None
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._limit_bytes = UNREAD_CONTROL_BYTES_MAX
        #: Withheld reports by rank, and whether the reducer drains. None if there are none.
        self._news: tuple[dict[int, Peer], bool] | None = None
        self._changed = asyncio.Event()
        self._is_closed = False
        #: The process at the other end, once it has sent a frame.
        self._life: Life | None = None
        self._peer = peer
        self._stream = engine.open(self, peer)
        self._stream.pace(GrpcSockets({address_of(peer)}))

    @property
    def has_moved(self) -> bool:
        """Whether the stream has moved to the data port."""
        return self._data is not None

    @property
    def is_closed(self) -> bool:
        """Whether the engine has ended the stream, so that frames of the worker are ignored."""
        return self._is_closed

    @property
    def label(self) -> str:
        """The job and the rank of an open stream, for the log."""
        return self._stream.label

    def path(self) -> Path | None:
        """Return the path to the worker's host, or None if the stream has no open TCP connection."""
        if self._owner is None or self._data is None or self._data.connection.is_closed:
            return None
        state = self._data.connection.path
        if not state.rtt_s:
            return None
        # The kernel may learn later that a retransmission was unnecessary, but a counter must not fall.
        self._packets_lost = max(self._packets_lost, state.packets_lost)
        return Path(self._owner, state.rtt_s, self._packets_lost)

    # ---- from the worker ----

    def receive(self, frame: WorkerFrame) -> None:
        """Handle a frame from the gRPC call."""
        if self._has_sent_moved or (isinstance(frame, Moved) and not self._key):
            self.reject(OutOfOrder(f"{type(frame).__name__} on the call, which does not belong there"))
        elif not isinstance(frame, Moved):
            if self._life is None:
                self._life = Life(self._peer, frame.life_port if isinstance(frame, Join) else 0)
            self._stream.send(frame)
        else:
            self._has_sent_moved = True
            if self._data is not None:
                self._data.connection.start()
            else:  # the connection may only just have been admitted
                self._moving = asyncio.get_running_loop().call_later(DATA_KEY_S, self._check_moved)

    def reject(self, error: ReductionError) -> None:
        """End the stream because of an error of the peer."""
        self._stream.reject(error)

    def close(self) -> None:
        """End the stream. Queued frames are still sent."""
        self._lose("its call ended")

    def drop(self, error: ReductionError | None = None) -> None:
        """End the stream. Queued frames are lost."""
        self._lose("its call ended" if error is None else str(error))
        self.error = self.error or error
        if self._data is not None:
            self._data.connection.close()

    def _lose(self, reason: str) -> None:
        on_ended = self._stream.close(reason)
        if on_ended is not None and self._life is not None:
            self._life.on_lost(on_ended)

    # ---- from the engine ----

    def on_frame(self, frame: ReducerFrame) -> None:
        """Queue a frame; see `Sink.on_frame`."""
        if isinstance(frame, Welcome):
            self._limit_bytes = 2 * frame.credit_bytes + CHUNK_BYTES_MAX + UNREAD_CONTROL_BYTES_MAX
            frame = replace(frame, siblings=self._siblings)
            if self._data_port is not None:
                self._key = self._data_port.offer(self._move, self._certificate, self._stream.job)
                frame = replace(frame, data_port=self._data_port.port, data_key=self._key)
        if isinstance(frame, Peers) and (self._news is not None or self._unread_bytes > UNREAD_NEWS_BYTES):
            self._hold_back(frame)
            return
        self._send(frame)
        queued = self._unread_bytes
        if queued > self._limit_bytes and not self._is_closed:
            error = OutOfOrder(f"{queued} bytes wait unread, the limit is {self._limit_bytes}")
            asyncio.get_running_loop().call_soon(self.reject, error)

    def on_closed(self, error: ReductionError | None) -> None:
        """Let both planes end after the queued frames; see `Sink.on_closed`."""
        self.error = error
        self._is_closed = True
        self._stop_waiting()
        self._changed.set()
        if self._data_port is not None:
            self._data_port.withdraw(self._key)
        if self._data is not None:
            self._data.connection.finish()

    async def drain(self) -> AsyncIterator[bytes]:
        """Yield frames for the gRPC call until the stream is closed and the queue is empty."""
        while True:
            while self._frames:
                data = self._frames.popleft()
                self._queued_bytes -= len(data)
                yield data
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()

    @property
    def _unread_bytes(self) -> int:
        """Bytes that wait on the plane in use."""
        if self._data is not None and not self._data.connection.is_closed:
            return self._data.unread_bytes
        return self._queued_bytes

    def _send(self, frame: ReducerFrame) -> None:
        if self._data is not None and not self._data.connection.is_closed:
            self._data.send(frame)
        else:
            self._queue(self._encoder.encode(frame))

    def _queue(self, data: bytes) -> None:
        self._frames.append(data)
        self._queued_bytes += len(data)
        self._changed.set()

    def _hold_back(self, news: Peers) -> None:
        """Keep a report until the peer has read some data. A newer report of the same rank replaces it."""
        if self._news is None:
            self._news = {}, False
            asyncio.get_running_loop().call_later(HELD_BACK_S, self._send_news)
        waiting, _ = self._news
        self._news = waiting | {peer.rank: peer for peer in news.peers}, news.draining

    def _send_news(self) -> None:
        if self._is_closed or self._news is None:
            return
        if self._unread_bytes > UNREAD_NEWS_BYTES:
            asyncio.get_running_loop().call_later(HELD_BACK_S, self._send_news)
            return
        waiting, draining = self._news
        self._news = None
        self._send(Peers(tuple(waiting[rank] for rank in sorted(waiting)), draining))

    def _move(self, sock: socket.socket | tcp.TlsSocket) -> None:
        """Move the stream to a connection that has presented the key."""
        if self._is_closed or self._data is not None:
            sock.close()
            return
        self._stop_waiting()
        self._queue(wire.reducer_frame_to_wire(Moved()))
        is_local = sock.family == socket.AF_UNIX
        self._owner = self._stream.move(ON_SHARED_MEMORY if is_local else ON_TCP)
        if self._owner is not None and not is_local:
            self._owner.totals.add_retransmits(self._owner.host, 0)  # so that the host has a series
        self._data = DataSession(
            sock,
            self._engine.pool,
            self._encoder.header,
            self._stream.send,
            self._on_data_end,
            partial(self._engine.mapped.charge, NOBODY if self._owner is None else self._owner.account),
        )
        self._stream.pace(None if is_local else self._data.connection)
        if self._has_sent_moved:
            self._data.connection.start()

    def _stop_waiting(self) -> None:
        if self._moving is not None:  # the timer would keep this stream alive until it expires
            self._moving.cancel()
            self._moving = None

    def _check_moved(self) -> None:
        if self._data is None and not self._is_closed:
            self.reject(OutOfOrder(f"its stream moved, but no connection has come for {DATA_KEY_S:g} s"))

    def _on_data_end(self, error: Exception | None) -> None:
        if isinstance(error, ReductionError):
            self.reject(error)
        elif isinstance(error, tcp.CannotShare) and self._data_port is not None:
            job = "" if self._owner is None else self._owner.account.job
            self._data_port.share_less(job, str(error))  # before the worker dials again
        if self._owner is not None and self._data is not None:
            lost = max(self._packets_lost, self._data.connection.packets_lost)
            if lost:
                self._owner.totals.add_retransmits(self._owner.host, lost)
        self._lose("its data connection ended" if error is None else f"a data connection broke: {error}")
        self.data_ended.set()
