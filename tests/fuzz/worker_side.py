"""A rank in front of reducers that send anything: its core alone, and with the TCP plane below it.

Whatever arrives, the core must not raise, must not complete a result partially, twice or with bytes of a wrong size,
must not push what it has released, and must not create links without limit.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fuzz import descriptors, frames, scripts
from fuzz.bugs import HANG_S, Bugs, run
from reduction import limits, wire
from reduction.client.tcp_client import TcpEndpoint, TcpStream
from reduction.errors import MalformedFrame, ReductionError
from reduction.limits import LINKS_MAX
from reduction.model import Moved, Place, ReducerFrame, Welcome, WorkerFrame
from reduction.process.place import local_socket, own_host
from reduction.transports import tcp
from reduction.transports.shared import OwnMemory

from worker_plugin.core.actions import (
    Action,
    Closed,
    Deliver,
    Divert,
    Fail,
    Open,
    PushChunk,
    Release,
    Send,
    Shut,
    Store,
)
from worker_plugin.core.events import Close, Event, Issued, Received, StreamLost, Tick
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore
from worker_plugin.transports.destinations import Destinations

COLLECTIVES_MAX = 8
_CHUNKS = len(frames.SIZES)


class _Rank:
    """Does what the client does with a core, and checks its actions against the invariants."""

    def __init__(self, rank: int, world_size: int, reducers: int) -> None:
        identity = Identity(
            job="left",
            instance=frames.LIFE if rank == 0 else b"",
            nonce=frames.NONCES[rank],
            host=f"h{rank}",
            rank=rank,
            world_size=world_size,
            chunk_bytes=frames.CHUNK,
            credit_bytes=frames.CREDIT,
            timeout_s=600.0,
            stall_warn_s=5.0,
            join_timeout_s=60.0,
            close_timeout_s=5.0,
        )
        self.core = RankCore(identity, [f"{letter}:1" for letter in "ab"[:reducers]])
        self.now = 0.0
        #: Links with a stream.
        self.open: set[int] = set()
        #: Links in `open` whose stream ends once everything sent has left.
        self.shut: set[int] = set()
        #: Links that ever had a stream.
        self.known: set[int] = set()
        self.is_over = False
        self._bytes: dict[int, bytearray] = {}
        #: Destinations of results, by link.
        self.destinations: defaultdict[int, Destinations] = defaultdict(Destinations)
        self._delivered: set[int] = set()
        self._released: set[int] = set()

    def take(self, event: Event) -> None:
        """Pass an event to the core."""
        for action in self.core.handle(event, self.now):
            assert not self.is_over or isinstance(action, (Send, Closed)), "only farewells follow the end"
            self._perform(action)
        assert len(self.core.roster.links) <= LINKS_MAX

    def receive(self, link: int, frame: ReducerFrame) -> None:
        """Deliver a frame on a link's current stream."""
        if link in self.open:
            self.take(Received(link, frame))

    def lose(self, link: int, error: ReductionError | None) -> None:
        """End a link's current stream."""
        if link in self.open:
            self.open.discard(link)
            self.shut.discard(link)
            self.take(StreamLost(link, error))

    def issue(self) -> None:
        """Issue a collective as the user does; the client refuses once the rank is over."""
        if self.core.window.issued < COLLECTIVES_MAX and not self.is_over:
            self._bytes[self.core.window.issued] = bytearray(frames.SUM.nbytes)
            self.take(Issued(frames.SUM))

    def _perform(self, action: Action) -> None:
        match action:
            case Open(link):
                assert link not in self.open or link in self.shut, "two streams of one link"
                self.open.add(link)
                self.known.add(link)
                self.shut.discard(link)
            case Shut(link):
                assert link in self.open
                self.shut.add(link)
                self.destinations[link].clear()
            case Divert(link):
                self.destinations[link].clear()
            case Send(link):
                assert link in self.known, "it never had a stream"  # a frame for an ended stream is dropped
            case PushChunk():
                assert action.link in self.open
                assert action.seq not in self._released, "needs what it has released"
                assert 0 <= action.start <= action.stop <= frames.SUM.nbytes
                assert not (action.is_awaited and action.seq in self._delivered), "awaits what is there"
                memory = memoryview(self._bytes[action.seq])[action.start : action.stop]
                self.destinations[action.link].expect(
                    action.epoch, action.seq, action.chunk, memory if action.is_awaited else None
                )
            case Store(seq, start, _, payload):
                assert seq not in self._delivered, "a result that is there already"
                assert start + payload.nbytes <= frames.SUM.nbytes
                self._bytes[seq][start : start + payload.nbytes] = payload
            case Deliver(seq):
                assert seq not in self._delivered, "twice"
                assert self.core.window.outstanding[seq].missing == 0, "in part"
                self._delivered.add(seq)
            case Release(seq):
                assert seq in self._delivered, "its result has not come"
                self._released.add(seq)
            case Fail() | Closed():
                self.is_over = True


def core(data: bytes) -> None:
    """Run frames of reducers. Operations: 0-4 a frame, 5 lose the stream, 6 advance time, 7 issue, or close at 255."""
    script = scripts.decode(data[1:])
    rank = _Rank(data[0] % 2 if data else 0, 2, 2)
    rank.take(Tick())
    for operation, argument, body in script:
        if rank.is_over:
            return
        link = argument % len(rank.core.roster.links)
        match operation % 8:
            case 5:
                rank.lose(link, None)
            case 6:
                rank.now += argument * 0.05
                rank.take(Tick())
            case 7 if argument == 255:
                rank.take(Close())
            case 7:
                rank.issue()
            case _:
                try:
                    rank.receive(link, wire.reducer_frame_from_wire(body))
                except MalformedFrame as error:
                    rank.lose(link, error)


class _Call:
    """A substitute for the gRPC call, which tells the stream about its end when asked to."""

    def __init__(self) -> None:
        self.sink: Any = None

    def open(self, sink: Any) -> _Call:
        """See `ReducerEndpoint.open`."""
        self.sink = sink
        return self

    def send(self, frame: WorkerFrame) -> None:
        """Do nothing: only the Join is sent on the call."""

    def close(self) -> None:
        """End the call, as the reducer ends its side too."""
        self.cancel()

    def cancel(self) -> None:
        """End the call immediately."""
        sink, self.sink = self.sink, None
        if sink is not None:
            asyncio.get_running_loop().call_soon(sink.on_closed, None)


class _Link:
    """The client's `LinkSink`, which passes a stream's frames to the core of a job with one rank."""

    def __init__(self) -> None:
        self.rank = _Rank(0, 1, 1)
        self.ended = asyncio.Event()

    def on_frame(self, frame: ReducerFrame) -> None:
        """See `Sink.on_frame`."""
        self.rank.receive(0, frame)

    def destination(self, epoch: int, seq: int, chunk: int, nbytes: int) -> memoryview | None:
        """Return memory for a result, as the client's sink does."""
        return self.rank.destinations[0].take(epoch, seq, chunk, nbytes)

    def on_closed(self, error: ReductionError | None) -> None:
        """See `Sink.on_closed`."""
        assert not self.ended.is_set(), "closed twice"
        self.rank.lose(0, error)
        self.ended.set()


def data_plane(data: bytes) -> None:
    """Run what a data port sends. First byte: 0 for our greeting, 1 for one from the input; + 2 x pieces."""
    with frames.believed_headers():
        run(_data_plane(data[0] if data else 0, data[1:]))


def local_plane(data: bytes) -> None:
    """Run what a data port sends over a UNIX socket. Operations: 0-6 bytes, 7 bytes and descriptor `argument`."""
    with frames.believed_headers(), descriptors.nothing_stays():
        run(_local_plane(scripts.decode(data)))


async def _data_plane(how: int, data: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link, call, stream = _opened(TcpEndpoint("127.0.0.1:1", is_required=bool(how & 128)))
        welcome = Welcome(frames.INCARNATION, frames.CREDIT, listener.getsockname()[1], frames.KEY)
        async with _served(listener, link, call, stream, welcome) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            await _serve(sock, stream, how, data)


async def _local_plane(script: list[scripts.Record]) -> None:
    incarnation = os.urandom(limits.ID_BYTES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(local_socket(incarnation))
        listener.listen()
        memory = OwnMemory()
        link, call, stream = _opened(TcpEndpoint("127.0.0.1:1", is_required=False, memory=memory))
        welcome = Welcome(incarnation, frames.CREDIT, 1, frames.KEY, place=Place(own_host()))
        async with _served(listener, link, call, stream, welcome) as sock:
            await _greet(sock)
            stream.on_frame(Moved())
            for record in script:
                await descriptors.send(sock, record)
            await _see_the_end(sock)


def _opened(endpoint: TcpEndpoint) -> tuple[_Link, _Call, TcpStream]:
    """Return a stream with the link above it and the call below it."""
    link, call = _Link(), _Call()
    return link, call, TcpStream(endpoint, call, link)  # type: ignore[arg-type]


@asynccontextmanager
async def _served(
    listener: socket.socket, link: _Link, call: _Call, stream: TcpStream, welcome: Welcome
) -> AsyncIterator[socket.socket]:
    """Yield the reducer's end of the stream's connection. Afterwards everything must end."""
    listener.setblocking(False)
    with Bugs("worker_plugin") as bugs:
        link.rank.take(Tick())
        link.rank.issue()
        stream.send(frames.join(0, 1))
        stream.on_frame(welcome)
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        with sock:
            try:
                async with asyncio.timeout(HANG_S):
                    count = len(tcp.PREAMBLE) + limits.DATA_KEY_BYTES
                    hello = await tcp.receive_exactly(asyncio.get_running_loop(), sock, count, "no greeting")
                    assert hello == tcp.PREAMBLE + frames.KEY
                    yield sock
            except TimeoutError:
                raise  # the worker hangs
            except OSError:
                pass  # the worker refused us
        call.cancel()
        async with asyncio.timeout(HANG_S):
            await link.ended.wait()
            await stream.wait_closed()
    bugs.raise_first()


async def _greet(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, tcp.PREAMBLE)
    assert await tcp.receive_exactly(loop, sock, len(tcp.PREAMBLE), "no answer") == tcp.PREAMBLE


async def _see_the_end(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)
    while await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
        pass


async def _serve(sock: socket.socket, stream: TcpStream, how: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    if how % 2 == 0:
        await _greet(sock)
    stream.on_frame(Moved())
    step = max(1, len(data) // (how // 2 % 8 + 1))
    for start in range(0, len(data), step):
        await loop.sock_sendall(sock, data[start : start + step])
        await asyncio.sleep(0)
    await _see_the_end(sock)
