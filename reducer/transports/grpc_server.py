"""The gRPC plane, reducer side: grpc.aio on the engine's own loop, one reader and one writer per stream.

Messages are bytes in and out: the schema is kept by `reduction.wire`, without protobuf's payload copies. A
rank that reads slowly fills its own outbox and nobody else's; credit bounds the outbox, and a peer that goes
past it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from reduction import layout, wire
from reduction.errors import OutOfOrder, ReductionError
from reduction.model import ReducerFrame, Result, Welcome
from reduction.v1 import reduction_pb2 as pb

from reducer.engine import Engine

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Reduction"].full_name

#: What a stream's outbox may hold beside results: control frames.
OUTBOX_FIXED_BYTES = 1 << 20
#: How long the last frames of a stream may take to leave, in seconds.
LINGER_S = 5.0

#: How long a new stream may take to send its Join, in seconds.
JOIN_S = 10.0
#: A worker's state opens one.
STREAMS_PER_CONNECTION_MAX = 64

OPTIONS = [
    # Two servers on one port without an error is what SO_REUSEPORT would give.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", wire.FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", wire.FRAME_BYTES_MAX),
    # A silent worker host or cut link is noticed after 10 s, by TCP_USER_TIMEOUT, which keepalive sets. The
    # worker's process need not answer: one that is stopped or busy is late, not lost.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 86_400_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Workers ping to notice a silent network; never answer that with too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]

#: proto/README.md, "Errors".
STATUS = {
    1: grpc.StatusCode.UNAVAILABLE,
    2: grpc.StatusCode.UNAVAILABLE,
    3: grpc.StatusCode.RESOURCE_EXHAUSTED,
    4: grpc.StatusCode.ALREADY_EXISTS,
    5: grpc.StatusCode.ALREADY_EXISTS,
    6: grpc.StatusCode.DEADLINE_EXCEEDED,
    7: grpc.StatusCode.INVALID_ARGUMENT,
    8: grpc.StatusCode.UNIMPLEMENTED,
    9: grpc.StatusCode.FAILED_PRECONDITION,
    10: grpc.StatusCode.FAILED_PRECONDITION,
    11: grpc.StatusCode.ABORTED,
    12: grpc.StatusCode.ABORTED,
    13: grpc.StatusCode.ABORTED,
}


class Encoder:
    """Encodes frames; a result that goes to n ranks is encoded once."""

    def __init__(self) -> None:
        self._frame: ReducerFrame | None = None
        self._data = b""

    def encode(self, frame: ReducerFrame) -> bytes:
        """Return the frame's bytes."""
        if not isinstance(frame, Result):
            return wire.reducer_frame_to_wire(frame)
        if frame is not self._frame:
            self._frame, self._data = frame, wire.reducer_frame_to_wire(frame)
        return self._data


class Outbox:
    """A stream's `Sink`: encoded frames on their way to the writer."""

    def __init__(self, encoder: Encoder) -> None:
        self.error: ReductionError | None = None
        #: Ends the stream; set by its owner.
        self.reject: Callable[[ReductionError], None] = lambda error: None
        self.queued_bytes = 0
        self.limit_bytes = OUTBOX_FIXED_BYTES
        self._encoder = encoder
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False

    def on_frame(self, frame: ReducerFrame) -> None:
        """Queue a frame; see `Sink.on_frame`."""
        if isinstance(frame, Welcome):
            self.limit_bytes = 2 * frame.credit_bytes + layout.CHUNK_BYTES_MAX + OUTBOX_FIXED_BYTES
        data = self._encoder.encode(frame)
        self._frames.append(data)
        self.queued_bytes += len(data)
        self._changed.set()
        if self.queued_bytes > self.limit_bytes and not self._is_closed:
            error = OutOfOrder(f"{self.queued_bytes} bytes wait unread, the limit is {self.limit_bytes}")
            asyncio.get_running_loop().call_soon(self.reject, error)

    def on_closed(self, error: ReductionError | None) -> None:
        """Let the writer end after what is queued; see `Sink.on_closed`."""
        self.error = error
        self._is_closed = True
        self._changed.set()

    async def drain(self) -> AsyncIterator[bytes]:
        """Yield frames until the stream is closed and the queue is empty."""
        while True:
            while self._frames:
                data = self._frames.popleft()
                self.queued_bytes -= len(data)
                yield data
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()


class GrpcServer:
    """Serves an engine on one address; also health and reflection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._encoder = Encoder()
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=OPTIONS)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "Status": grpc.unary_unary_rpc_method_handler(self._status),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    async def start(self, bind: str) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        try:
            port = self._server.add_insecure_port(bind)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {bind}: {error}") from None
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def not_serving(self) -> None:
        """Tell health checks that no new work is wanted."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """End all streams."""
        await self._server.stop(grace_s)

    async def _status(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return wire.status_to_wire(self._engine.status())

    async def _session(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        outbox = Outbox(self._encoder)
        stream = self._engine.open(outbox)
        outbox.reject = stream.reject
        reader = asyncio.create_task(self._read(context, stream.send, stream.reject))
        writer = asyncio.create_task(self._write(context, outbox))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            stream.close()
            await asyncio.wait((writer,), timeout=LINGER_S)
            if outbox.error is not None:
                context.set_code(STATUS.get(outbox.error.code, grpc.StatusCode.INTERNAL))
                context.set_details(str(outbox.error))
        finally:
            stream.close()
            reader.cancel()
            writer.cancel()
            for end in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(end, Exception) and not context.cancelled():
                    log.warning("a stream's task failed reason=%r", end)

    @staticmethod
    async def _read(
        context: grpc.aio.ServicerContext[bytes, bytes],
        send: Callable[..., None],
        reject: Callable[[ReductionError], None],
    ) -> None:
        limit_s: float | None = JOIN_S
        while True:
            try:
                data: Any = await asyncio.wait_for(context.read(), limit_s)
            except TimeoutError:
                reject(OutOfOrder(f"no Join within {JOIN_S:g} s"))
                return
            limit_s = None
            if data is grpc.aio.EOF:
                return
            try:
                frame = wire.worker_frame_from_wire(data)
            except ReductionError as error:
                reject(error)
                return
            send(frame)

    @staticmethod
    async def _write(context: grpc.aio.ServicerContext[bytes, bytes], outbox: Outbox) -> None:
        async for data in outbox.drain():
            await context.write(data)
