"""The gRPC plane, reducer side: grpc.aio on the engine's own loop, one reader and one writer per stream.

Messages are bytes in and out: the schema is kept by `reduction.wire`, without protobuf's payload copies. A
stream may leave for the data port (`outbox.py`); its call then stays open as its life line, and either ends
with the other: so both planes notice a lost peer in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from reduction import wire
from reduction.errors import (
    OutOfOrder,
    ReducerUnavailable,
    ReductionError,
    ResourceExhausted,
    Unauthenticated,
)
from reduction.model import WorkerFrame
from reduction.tokens import TokenTable
from reduction.v1 import reduction_pb2 as pb

from reducer.engine import Engine
from reducer.security import check_join, check_status
from reducer.transports.outbox import Encoder, Outbox
from reducer.transports.tcp_server import DataPort

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Reduction"].full_name

#: How long the last frames of a stream may take to leave, in seconds.
LINGER_S = 5.0

#: A worker's state opens one.
STREAMS_PER_CONNECTION_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server takes at a time; what is past it is refused, and the others are served."""

    #: Streams of all connections together.
    streams: int = 8192
    #: Of these, those whose Join is being read, which may make gRPC hold one frame of FRAME_BYTES_MAX each. The
    #: others wait for their turn: the ranks of a job come all at once.
    strangers: int = 256
    #: How long a new stream may wait for its turn, in seconds.
    turn_s: float = 10.0
    #: How long it then may take to send its Join, in seconds.
    join_s: float = 10.0
    #: More than streams, so that one too many hears why; the rest is for health checks and status.
    connections: int = 8192 + 1024


OPTIONS = [
    # Two servers on one port without an error is what SO_REUSEPORT would give.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", wire.FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", wire.FRAME_BYTES_MAX),
    # A silent worker host or cut link is noticed after 8 to 10 s, by TCP_USER_TIMEOUT, which keepalive sets to its
    # timeout: 8 s after what was sent last, if that was data, or after a ping. (With 5 s a cut of 6 s under traffic
    # ended the job.) The worker's process need not answer: one that is stopped or busy is late, not lost.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.http2.ping_timeout_ms", 86_400_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # Connections without a call, and those that have not come as far as HTTP/2.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.server_handshake_timeout_ms", 30_000),
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
    15: grpc.StatusCode.UNAUTHENTICATED,
    16: grpc.StatusCode.DATA_LOSS,
    17: grpc.StatusCode.ABORTED,
    18: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcServer:
    """Serves an engine on one address; also health and reflection, to everybody.

    Args:
        engine: what the streams lead to.
        data_port: offered to workers, if there is one.
        credentials: None serves in clear.
        tokens: None asks nobody for a token.
        limits: how much of everything.
    """

    def __init__(
        self,
        engine: Engine,
        data_port: DataPort | None = None,
        *,
        credentials: grpc.ServerCredentials | None = None,
        tokens: TokenTable | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self._engine = engine
        self._data_port = data_port
        self._credentials = credentials
        self._tokens = tokens
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.strangers)
        self._siblings: tuple[int, ...] = ()
        self._outboxes: set[Outbox] = set()
        self._encoder = Encoder()
        self._health = health.aio.HealthServicer()
        # Of the calls, too: a health check may watch for ever.
        self._server = grpc.aio.server(
            options=[*OPTIONS, ("grpc.max_allowed_incoming_connections", limits.connections)],
            maximum_concurrent_rpcs=limits.connections,
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "Status": grpc.unary_unary_rpc_method_handler(self._status),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def bind(self, bind: str) -> int:
        """Take the address; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(bind)
            return self._server.add_secure_port(bind, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {bind}: {error}") from None

    async def start(self, siblings: Sequence[int] = ()) -> None:
        """Serve; `siblings` are the ports of the other processes of this `reducer serve`."""
        self._siblings = tuple(siblings)
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def not_serving(self) -> None:
        """Tell health checks that no new work is wanted."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """End all streams."""
        # Those that moved do not end with the server's calls, which gRPC would then cancel with an error in the log.
        for outbox in list(self._outboxes):
            outbox.drop(ReducerUnavailable("the reducer has stopped"))
        await self._server.stop(grace_s)

    async def _status(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            check_status(self._tokens, context.invocation_metadata() or (), context.peer())
        except Unauthenticated as error:
            log.warning("refused a status call reason=%s", error)
            await context.abort(STATUS[error.code], str(error))
        return wire.status_to_wire(replace(self._engine.status(), siblings=self._siblings))

    async def _session(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        outbox = Outbox(self._engine, self._encoder, self._data_port, self._siblings)
        is_full = len(self._outboxes) >= self._limits.streams
        self._outboxes.add(outbox)
        reader = asyncio.create_task(self._read(context, outbox, is_full))
        writer = asyncio.create_task(self._write(context, outbox))
        data = asyncio.create_task(outbox.data_ended.wait())
        try:
            await asyncio.wait((reader, writer, data), return_when=asyncio.FIRST_COMPLETED)
            outbox.close()
            await asyncio.wait((writer, data) if outbox.has_moved else (writer,), timeout=LINGER_S)
            if outbox.error is not None:
                context.set_code(STATUS.get(outbox.error.code, grpc.StatusCode.INTERNAL))
                context.set_details(str(outbox.error))
        finally:
            self._outboxes.discard(outbox)
            outbox.drop()
            for task in (reader, writer, data):
                task.cancel()
            for end in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(end, Exception) and not context.cancelled():
                    log.warning("a stream's task failed reason=%r", end)

    async def _read(
        self, context: grpc.aio.ServicerContext[bytes, bytes], outbox: Outbox, is_full: bool
    ) -> None:
        try:
            if is_full:
                raise ResourceExhausted(
                    f"{self._limits.streams} streams are open, which is this reducer's limit: try another, or later"
                )
            frame = await self._first_frame(context)
            while frame is not None:
                outbox.receive(frame)
                data: Any = await context.read()
                frame = None if data is grpc.aio.EOF else wire.worker_frame_from_wire(data)
        except ReductionError as error:
            outbox.reject(error)

    async def _first_frame(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> WorkerFrame | None:
        """Return what must be a Join, from somebody who may send it; None if nothing comes.

        Raises:
            ReductionError: too many others have sent none, or this one may not join.
        """
        limits = self._limits
        try:
            async with asyncio.timeout(limits.turn_s):
                await self._turns.acquire()
        except TimeoutError:
            raise ResourceExhausted(
                f"{limits.strangers} streams have sent no Join, which is this reducer's limit, and for "
                f"{limits.turn_s:g} s none of them has made room: try again"
            ) from None
        try:
            async with asyncio.timeout(limits.join_s):
                data: Any = await context.read()
        except TimeoutError:
            raise OutOfOrder(f"no Join within {limits.join_s:g} s") from None
        finally:
            self._turns.release()
        if data is grpc.aio.EOF:
            return None
        frame = wire.worker_frame_from_wire(data)
        check_join(self._tokens, frame, context.invocation_metadata() or (), context.peer())
        return frame

    @staticmethod
    async def _write(context: grpc.aio.ServicerContext[bytes, bytes], outbox: Outbox) -> None:
        async for data in outbox.drain():
            await context.write(data)
