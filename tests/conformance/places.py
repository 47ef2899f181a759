"""A reducer and its workers for the conformance suite, in process and behind each transport.

Nothing here sleeps: workers wait for frames, and time passes only when a test advances it.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from functools import cache
from pathlib import Path

import grpc
import numpy as np
from reduction import layout, limits, model, wire
from reduction.client.access import OPEN, with_certificates
from reduction.client.grpc_client import METHOD, GrpcEndpoint
from reduction.client.tcp_client import TcpEndpoint
from reduction.errors import ReductionError
from reduction.model import (
    NOWHERE,
    Abort,
    Collective,
    Configuration,
    DType,
    Hello,
    Join,
    Member,
    Moved,
    Peers,
    Presence,
    Push,
    ReduceOp,
    Result,
    Start,
    Welcome,
)
from reduction.process.place import own_host
from reduction.security.tokens import TokenTable
from reduction.transports import tcp
from reduction.transports.interface import ReducerEndpoint, ReducerStream
from reduction.transports.shared import OwnMemory
from support.network.certificates import Authority
from support.network.channels import NO_PROXY

from reducer.credentials import Certificates
from reducer.engine import Engine
from reducer.transports.grpc_server import Drain, GrpcServer, Limits
from reducer.transports.tcp_server import DataPort

CHUNK = 1024
P, L, G = Presence.PRESENT, Presence.LOST, Presence.LEFT


def received_bytes(place):
    """Return the payload bytes received for the present jobs of a place's reducer."""
    return sum(job.received_bytes for job in place.engine.status().jobs)


class Recorder:
    """A `Sink` that keeps what it received for a waiting test. It does not choose where payloads are stored."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue = asyncio.Queue()
        self.closed: asyncio.Future[ReductionError | None] = asyncio.get_running_loop().create_future()

    def destination(self, epoch, seq, chunk, nbytes):
        assert not self.closed.done(), "on_closed is the last call"

    def on_frame(self, frame):
        assert not self.closed.done(), "on_closed is the last call"
        self.frames.put_nowait(frame)

    def on_closed(self, error):
        self.closed.set_result(error)  # raises when called twice


class Arena(Recorder):
    """A `ResultSink` that places every payload in its own memory, between margins that must not change."""

    MARGIN = b"<margin>"

    def __init__(self) -> None:
        super().__init__()
        self._arriving: tuple[bytearray, memoryview] | None = None

    def destination(self, epoch, seq, chunk, nbytes):
        super().destination(epoch, seq, chunk, nbytes)
        memory = bytearray(self.MARGIN + bytes(nbytes) + self.MARGIN)
        self._arriving = memory, memoryview(memory)[len(self.MARGIN) : len(self.MARGIN) + nbytes]
        return self._arriving[1]

    def on_frame(self, frame):
        if isinstance(frame, Result):
            assert self._arriving is not None, "a result without a destination"
            (memory, view), self._arriving = self._arriving, None
            assert frame.payload is view, "it came elsewhere"
            assert memory.startswith(self.MARGIN)
            assert memory.endswith(self.MARGIN)
        super().on_frame(frame)


class Worker:
    """One rank on one stream."""

    def __init__(
        self, place: Place, job: str, rank: int, world_size: int, life: str, *, is_deaf: bool
    ) -> None:
        self.place, self.job, self.rank, self.world_size = place, job, rank, world_size
        self.instance = f"{job}{life}".ljust(16, ".").encode()
        self.nonce = f"{job}{life}{rank}".ljust(16, ".").encode()
        self.sink = place.recorder()
        #: The presence of each rank according to the frames taken so far.
        self.seen: dict[int, Presence] = {}
        self.stream: ReducerStream = place.deaf_stream() if is_deaf else place.endpoint().open(self.sink)

    def send(self, frame) -> None:
        self.stream.send(frame)

    def join(self, **changes) -> None:
        fields = {
            "job": self.job,
            "instance": self.instance,
            "rank": self.rank,
            "world_size": self.world_size,
            "nonce": self.nonce,
            "host": f"host{self.rank}",
            "minimum": 0,
            "credit_bytes": 64 * CHUNK,
        }
        self.send(Join(**fields | changes))

    async def frame(self):
        """Return the next frame."""
        frame = await self.sink.frames.get()
        if isinstance(frame, Peers):
            self.seen |= {peer.rank: peer.presence for peer in frame.peers}
        return frame

    async def expect(self, kind):
        """Return the next frame, which must be of the given kind."""
        frame = await self.frame()
        assert isinstance(frame, kind), f"{frame} instead of {kind.__name__}"
        return frame

    async def next(self, kind):
        """Return the next frame of the given kind and drop the others before it."""
        while not isinstance(frame := await self.frame(), kind):
            pass
        return frame

    async def peers(self, *presences):
        """Wait until the ranks that the reducer has reported have exactly these presences."""
        while True:
            await self.next(Peers)
            if [self.seen[rank] for rank in sorted(self.seen)] == list(presences):
                return

    async def welcome(self, **changes):
        """Join and return the Welcome."""
        self.join(**changes)
        return await self.expect(Welcome)

    def configuration(self, epoch=1, **changes):
        member = Member("reducer:1", self.place.incarnation)
        return Configuration(
            **{"instance": self.instance, "epoch": epoch, "chunk_bytes": CHUNK, "members": (member,)}
            | changes
        )

    def hello(self, epoch=1, held=0, **changes) -> None:
        self.send(Hello(self.configuration(epoch, **changes), held))

    def push(
        self,
        values,
        seq=0,
        *,
        chunk=0,
        epoch=1,
        op=ReduceOp.SUM,
        dtype=DType.FLOAT32,
        held=0,
        numel=None,
        crc32c=None,
    ):
        """Push one chunk; `values` is an array of this chunk's elements."""
        numel = len(values) if numel is None else numel
        collective = Collective(op, dtype, numel, layout.fingerprint([numel]))
        payload = self.place.contribution(memoryview(np.ascontiguousarray(values)).cast("B"))
        self.send(Push(epoch, seq, chunk, collective, held, payload, crc32c))

    async def result(self, seq=0, chunk=0, dtype=np.float32):
        """Return the values of the next result, which must have this `seq` and `chunk`."""
        frame = await self.next(Result)
        assert (frame.seq, frame.chunk) == (seq, chunk)
        return np.frombuffer(frame.payload, dtype)


class DeafSink:
    """A sink that ignores everything."""

    def on_frame(self, frame): ...

    def on_closed(self, error): ...


class DeafGrpcStream:
    """A bare call that is written to but never read."""

    def __init__(self, call) -> None:
        self._call = call
        self._frames: asyncio.Queue = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    def send(self, frame) -> None:
        self._frames.put_nowait(frame)

    def close(self) -> None:
        self._writer.cancel()
        self._call.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._writer,))

    async def _write(self) -> None:
        while True:
            await self._write_one()

    async def _write_one(self) -> None:
        await self._call.write(wire.worker_frame_to_wire(await self._frames.get()))


class DeafTcpStream(DeafGrpcStream):
    """A stream that moves to the data port, is written to, and is never read after the answer to its key."""

    def __init__(self, call, host: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(call)
        self._host, self._tls = host, tls

    async def _write(self) -> None:
        await self._write_one()
        welcome = wire.reducer_frame_from_wire(await self._call.read())
        connection = await DataConnection.open(self._host, welcome.data_port, welcome.data_key, self._tls)
        await self._call.write(wire.worker_frame_to_wire(Moved()))
        try:
            while True:
                await connection.send(await self._frames.get())
        finally:
            connection.close()


async def beside_a_deaf_rank(place: Place, credit_bytes: int) -> tuple[Worker, Worker]:
    """Return two ranks, the second of which never reads, in a started epoch with chunks of 1 MiB."""
    reader, deaf = place.worker(0), place.worker(1, is_deaf=True)
    deaf.join(credit_bytes=credit_bytes)
    await reader.welcome(credit_bytes=credit_bytes)
    await reader.peers(P, P)
    for worker in (reader, deaf):
        worker.hello(chunk_bytes=limits.MIB)
    await reader.next(Start)
    return reader, deaf


async def cut_off_a_deaf_rank(place: GrpcPlace) -> None:
    """Push with a rank that never reads until its stream is ended, which must be before 64 MiB wait for it."""
    reader, deaf = await beside_a_deaf_rank(place, limits.MIB)
    for seq in range(64):
        for worker in (reader, deaf):
            worker.push(np.ones(limits.MIB // 4, np.float32), seq, numel=limits.MIB)
        if isinstance(await reader.next(Result | Abort), Abort):
            return
    raise AssertionError("64 MiB of results wait for a rank that does not read")


class DataConnection:
    """A bare connection to a data port, to do what no worker would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(
        cls, host: str, port: int, key: bytes, tls: ssl.SSLContext | None = None
    ) -> DataConnection:
        """Connect, send a key, wait for the answer, and confirm it."""
        connection = await cls.dial(host, port, tls)
        await connection.write(tcp.PREAMBLE + key)
        assert await connection.reader.readexactly(len(tcp.PREAMBLE)) == tcp.PREAMBLE
        await connection.write(tcp.PREAMBLE)
        return connection

    @classmethod
    async def dial(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> DataConnection:
        """Connect."""
        return cls(*await asyncio.open_connection(host, port, limit=1 << 12, ssl=tls))

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, frame) -> None:
        """Send a frame as a worker does."""
        if isinstance(frame, Push):
            await self.write(tcp.push_header(frame) + bytes(frame.payload))
        else:
            data = wire.worker_frame_to_wire(frame)
            await self.write(tcp.control_header(data) + data)

    async def rest(self) -> bytes:
        """Return the remaining bytes; a reset counts as the end."""
        data = b""
        try:
            while more := await self.reader.read(1 << 16):
                data += more
        except ConnectionResetError:
            pass
        return data

    def close(self) -> None:
        self.writer.transport.abort()


class Place:
    """A reducer, and the transport over which the suite reaches it."""

    #: The class of the workers' sinks.
    recorder: type[Recorder] = Recorder

    #: The place that the reducer reports.
    where = NOWHERE

    def __init__(self, memory_limit_bytes: int = 1 << 30) -> None:
        self.now = 100.0
        self.stirred = asyncio.Event()
        self.engine = Engine(memory_limit_bytes=memory_limit_bytes, place=self.where, clock=self._clock)
        self.incarnation = self.engine.jobs.incarnation
        self.workers: list[Worker] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def endpoint(self) -> ReducerEndpoint:
        return self.engine

    def contribution(self, payload: memoryview) -> memoryview:
        """Return a payload in the memory from which workers of this place push."""
        return payload

    def _clock(self) -> float:
        self.stirred.set()  # the engine reads the clock on every event
        return self.now

    async def until(self, is_so) -> None:
        """Wait until `is_so` holds for the reducer."""
        while not is_so():
            self.stirred.clear()
            await self.stirred.wait()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.engine.tick()

    def deaf_stream(self) -> ReducerStream:
        """Open a stream that is never read."""
        return self.engine.open(DeafSink())

    def worker(self, rank=0, *, job="job", world_size=2, life="", is_deaf=False) -> Worker:
        """Open a worker's stream; `life` distinguishes processes with the same job and rank."""
        self.workers.append(Worker(self, job, rank, world_size, life, is_deaf=is_deaf))
        return self.workers[-1]

    async def running(self, world_size=2, *, job="job", life="", credit=64 * CHUNK, **configuration):
        """Return the workers of a job that has started."""
        workers = [self.worker(rank, job=job, world_size=world_size, life=life) for rank in range(world_size)]
        for worker in workers:
            await worker.welcome(credit_bytes=credit)
        for worker in workers:
            worker.hello(**configuration)
        for worker in workers:
            await worker.next(Start)
        return workers


class GrpcPlace(Place):
    """The engine behind a gRPC server on loopback; each worker has its own connection."""

    data_port: DataPort | None = None
    limits = Limits()
    tokens: TokenTable | None = None
    #: The reducer's credentials; None without TLS.
    certificates: Certificates | None = None
    #: The credentials of the workers.
    access = OPEN
    #: Number of calls that asked the reducer to drain.
    drains = 0

    async def start(self) -> None:
        self.server = GrpcServer(
            self.engine,
            self.data_port,
            credentials=None if self.certificates is None else self.certificates.credentials,
            tokens=self.tokens,
            drain=Drain(self._on_drain, 30.0),
            limits=self.limits,
        )
        self.port = self.server.bind("127.0.0.1:0")
        await self.server.start()
        self.endpoints: list[GrpcEndpoint | TcpEndpoint] = []
        self.channels: list[grpc.aio.Channel] = []
        self.deaf: list[DeafGrpcStream | DeafTcpStream] = []

    async def stop(self) -> None:
        for stream in self.deaf:
            stream.close()
        for endpoint in self.endpoints:
            await endpoint.close()
        for channel in self.channels:
            await channel.close()
        await self.server.stop(0)
        for worker in self.workers:
            await worker.stream.wait_closed()

    def _on_drain(self) -> None:
        self.drains += 1

    def endpoint(self) -> ReducerEndpoint:
        self.endpoints.append(GrpcEndpoint(f"127.0.0.1:{self.port}"))
        return self.endpoints[-1]

    def channel(self) -> grpc.aio.Channel:
        """Return a new connection; every worker has its own."""
        options = [*NO_PROXY, ("grpc.use_local_subchannel_pool", 1)]
        self.channels.append(
            grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options)
            if self.access.credentials is None
            else grpc.aio.secure_channel(f"127.0.0.1:{self.port}", self.access.credentials, options)
        )
        return self.channels[-1]

    def call(self, metadata=()):
        """Return a bare Session call that sends and returns bytes."""
        return self.channel().stream_stream(METHOD)(metadata=metadata)

    def deaf_stream(self) -> ReducerStream:
        self.deaf.append(DeafGrpcStream(self.call()))
        return self.deaf[-1]


class TcpPlace(GrpcPlace):
    """A `GrpcPlace` with a data port, to which every stream moves."""

    #: Whether a stream that cannot move to the data port ends.
    is_required = True
    #: The name by which workers on the same host find the data port; if empty, they cannot.
    local_name = b""

    async def start(self) -> None:
        self.ways = []
        self.data_port = DataPort(None if self.certificates is None else self.certificates.context)
        self.data_port.start("127.0.0.1", 0, self.local_name)
        await super().start()

    async def stop(self) -> None:
        assert self.data_port is not None
        for way in self.ways:
            way.cut()
        self.data_port.stop()
        await super().stop()

    def way(self, way):
        """Keep a relay or a bad port between workers and reducer, and cut it when the place stops."""
        self.ways.append(way)
        return way

    async def eventually(self, is_so) -> None:
        """Let the loop run until `is_so` holds, for state changes that the engine does not see."""
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)

    def endpoint(self) -> ReducerEndpoint:
        address = f"127.0.0.1:{self.port}"
        self.endpoints.append(TcpEndpoint(address, is_required=self.is_required, access=self.access))
        return self.endpoints[-1]

    def deaf_stream(self) -> ReducerStream:
        self.deaf.append(DeafTcpStream(self.call(), "127.0.0.1", self.access.tls_context))
        return self.deaf[-1]


@cache
def authority() -> Authority:
    """Return a certification authority for the suite."""
    return Authority(Path(tempfile.mkdtemp(prefix="reduction-conformance-")))


class TlsPlace(TcpPlace):
    """A `TcpPlace` with TLS on both planes."""

    async def start(self) -> None:
        self.certificates = Certificates(authority().files("127.0.0.1"))
        self.access = with_certificates(authority().files("worker.example"), ())
        await super().start()


class SharedPlace(TcpPlace):
    """A `TcpPlace` with workers on the reducer's host; payloads lie in memory that both sides share."""

    is_required = False
    where = model.Place(own_host())

    async def start(self) -> None:
        self.memory = OwnMemory()
        self.local_name = self.incarnation
        await super().start()

    def endpoint(self) -> ReducerEndpoint:
        address = f"127.0.0.1:{self.port}"
        self.endpoints.append(TcpEndpoint(address, is_required=False, memory=self.memory))
        return self.endpoints[-1]

    def contribution(self, payload: memoryview) -> memoryview:
        self.memory.want()
        buffer = self.memory.allocate(payload.nbytes)
        buffer[:] = np.frombuffer(payload, np.uint8)
        return buffer.data


class SharedArenaPlace(SharedPlace):
    """A `SharedPlace` whose workers provide memory for every payload."""

    recorder = Arena


class ArenaPlace(TcpPlace):
    """A `TcpPlace` whose workers provide memory for every payload."""

    recorder = Arena
