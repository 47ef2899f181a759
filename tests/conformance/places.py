"""A reducer and workers for the conformance suite: in process, and behind each transport.

Nothing here sleeps: workers wait for frames, and time passes when a test says so.
"""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
from reduction import layout, wire
from reduction.endpoint import ReducerEndpoint, ReducerStream
from reduction.errors import ReductionError
from reduction.model import (
    Collective,
    Configuration,
    DType,
    Hello,
    Join,
    Member,
    Peers,
    Presence,
    Push,
    ReduceOp,
    Result,
    Start,
    Welcome,
)

from reducer.engine import Engine
from reducer.transports.grpc_server import GrpcServer
from worker_plugin.transports.grpc_client import METHOD, GrpcEndpoint

CHUNK = 1024
P, L, G = Presence.PRESENT, Presence.LOST, Presence.LEFT


class Recorder:
    """A `Sink` that keeps what came, for a test that waits."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue = asyncio.Queue()
        self.closed: asyncio.Future[ReductionError | None] = asyncio.get_running_loop().create_future()

    def on_frame(self, frame):
        assert not self.closed.done(), "on_closed is the last call"
        if isinstance(frame, Result):  # the payload is gone when this returns
            frame = Result(
                frame.epoch, frame.seq, frame.chunk, frame.minimum, memoryview(bytes(frame.payload))
            )
        self.frames.put_nowait(frame)

    def on_closed(self, error):
        self.closed.set_result(error)  # raises when called twice


class Worker:
    """One rank on one stream."""

    def __init__(
        self, place: Place, job: str, rank: int, world_size: int, life: str, *, is_deaf: bool
    ) -> None:
        self.place, self.job, self.rank, self.world_size = place, job, rank, world_size
        self.instance = f"{job}{life}".ljust(16, ".").encode()
        self.nonce = f"{job}{life}{rank}".ljust(16, ".").encode()
        self.sink = Recorder()
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
        return await self.sink.frames.get()

    async def expect(self, kind):
        """Return the next frame, which must be of this kind."""
        frame = await self.frame()
        assert isinstance(frame, kind), f"{frame} instead of {kind.__name__}"
        return frame

    async def next(self, kind):
        """Return the next frame of this kind; others in between are dropped."""
        while not isinstance(frame := await self.frame(), kind):
            pass
        return frame

    async def peers(self, *presences):
        """Wait until the reducer reports the ranks so."""
        while [peer.presence for peer in (await self.next(Peers)).peers] != list(presences):
            pass

    async def welcome(self, **changes):
        """Join; return what came with the welcome."""
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
        self, values, seq=0, *, chunk=0, epoch=1, op=ReduceOp.SUM, dtype=DType.FLOAT32, held=0, numel=None
    ):
        """Push one chunk; `values` is an array of this chunk's elements."""
        numel = len(values) if numel is None else numel
        collective = Collective(op, dtype, numel, layout.fingerprint([numel]))
        self.send(
            Push(epoch, seq, chunk, collective, held, memoryview(np.ascontiguousarray(values)).cast("B"))
        )

    async def result(self, seq=0, chunk=0, dtype=np.float32):
        """Return the values of the next result, which must be this one's."""
        frame = await self.next(Result)
        assert (frame.seq, frame.chunk) == (seq, chunk)
        return np.frombuffer(frame.payload, dtype)


class DeafSink:
    """Takes no notice."""

    def on_frame(self, frame): ...

    def on_closed(self, error): ...


class DeafGrpcStream:
    """A bare call that is written to and never read."""

    def __init__(self, call) -> None:
        self._call = call
        self._frames: asyncio.Queue = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    def send(self, frame) -> None:
        self._frames.put_nowait(wire.worker_frame_to_wire(frame))

    def close(self) -> None:
        self._writer.cancel()
        self._call.cancel()

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._frames.get())


class Place:
    """A reducer, and the way to it that the suite is run for."""

    def __init__(self, memory_limit_bytes: int = 1 << 30) -> None:
        self.now = 100.0
        self.stirred = asyncio.Event()
        self.engine = Engine(memory_limit_bytes=memory_limit_bytes, clock=self._clock)
        self.incarnation = self.engine.table.incarnation

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def endpoint(self) -> ReducerEndpoint:
        return self.engine

    def _clock(self) -> float:
        self.stirred.set()  # the engine asks for the time with every event
        return self.now

    async def until(self, is_so) -> None:
        """Wait for the reducer to come to a state."""
        while not is_so():
            self.stirred.clear()
            await self.stirred.wait()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.engine.tick()

    def deaf_stream(self) -> ReducerStream:
        """Open a stream from which nobody reads."""
        return self.engine.open(DeafSink())

    def worker(self, rank=0, *, job="job", world_size=2, life="", is_deaf=False) -> Worker:
        """Open a worker's stream; `life` tells a process from another one with the same job and rank."""
        return Worker(self, job, rank, world_size, life, is_deaf=is_deaf)

    async def running(self, world_size=2, *, job="job", life="", credit=64 * CHUNK, chunk_bytes=CHUNK):
        """Return workers of a job that may push."""
        workers = [self.worker(rank, job=job, world_size=world_size, life=life) for rank in range(world_size)]
        for worker in workers:
            await worker.welcome(credit_bytes=credit)
        for worker in workers:
            worker.hello(chunk_bytes=chunk_bytes)
        for worker in workers:
            await worker.next(Start)
        return workers


class GrpcPlace(Place):
    """The engine behind a gRPC server on loopback; each worker has a connection of its own."""

    async def start(self) -> None:
        self.server = GrpcServer(self.engine)
        self.port = await self.server.start("127.0.0.1:0")
        self.endpoints: list[GrpcEndpoint] = []
        self.channels: list[grpc.aio.Channel] = []
        self.deaf: list[DeafGrpcStream] = []

    async def stop(self) -> None:
        for stream in self.deaf:
            stream.close()
        for endpoint in self.endpoints:
            await endpoint.close()
        for channel in self.channels:
            await channel.close()
        await self.server.stop(0)

    def endpoint(self) -> ReducerEndpoint:
        self.endpoints.append(GrpcEndpoint(f"127.0.0.1:{self.port}"))
        return self.endpoints[-1]

    def channel(self) -> grpc.aio.Channel:
        self.channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{self.port}"))
        return self.channels[-1]

    def call(self):
        """Return a bare Session call that takes and gives bytes."""
        return self.channel().stream_stream(METHOD)()

    def deaf_stream(self) -> ReducerStream:
        self.deaf.append(DeafGrpcStream(self.call()))
        return self.deaf[-1]
