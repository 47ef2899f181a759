"""The gRPC plane of the reducer: grpc.aio on the engine's loop, a reader and a writer per stream.

gRPC passes bytes in and out. `reduction.wire` encodes and decodes them without protobuf's copies of
payloads. A stream may move to the data port (`outbox.py`). Its call then stays open, and call and data
connection end together, so that both planes notice a lost peer in the same way.

A stranger is a peer that has not sent a Join yet. It has a call but no stream. A refused call ends with
a status and no message. If it shows no known token, it is refused before its first frame is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection
from reduction import wire
from reduction.discovery.address_forms import join_host_and_port
from reduction.errors import ReducerUnavailable, ReductionError, ResourceExhausted
from reduction.limits import (
    CALLS_MAX,
    CONNECTION_HANDSHAKE_S,
    CONNECTION_IDLE_S,
    FIRST_MESSAGE_CROWDED_S,
    FIRST_MESSAGE_S,
    FIRST_MESSAGE_TURN_S,
    FIRST_MESSAGES_MAX,
    FIRST_MESSAGES_WAITING_MAX,
    FRAME_BYTES_MAX,
    LOOKAHEAD_BYTES,
    STREAMS_MAX,
    STREAMS_PER_CONNECTION_MAX,
    WORKER_CONTROL_BYTES_MAX,
)
from reduction.security.tokens import TokenTable
from reduction.shortage import shortage
from reduction.v1 import reduction_pb2 as pb

from reducer.binding import IPV4_ANY, check_address, free_port, ips_of, kept_from_ipv6
from reducer.config import split_address
from reducer.engine import Engine
from reducer.resources.heap import Heap
from reducer.security import certificate_of, check_call, check_drain, check_join, check_status, peer_of
from reducer.transports.lobby_calls import LobbyCalls
from reducer.transports.open_services import open_services
from reducer.transports.outbox import Encoder, Outbox, Path
from reducer.transports.tcp_server import DataPort
from reducer.transports.turns import Turns

Context = grpc.aio.ServicerContext[bytes, bytes]

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Reduction"].full_name

#: Timeout for sending the last frames of a stream, in seconds.
LINGER_S = 5.0


@dataclass(frozen=True, slots=True)
class Drain:
    """Implementation of the Drain call."""

    #: Asks all processes of this reducer to drain, and returns immediately.
    ask: Callable[[], None]
    #: Maximum time of draining, in seconds.
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Simultaneous load that one server accepts. It refuses the excess and serves the rest."""

    #: Streams of all connections together.
    streams: int = STREAMS_MAX
    #: Calls that are not streams yet because their first frame is being read.
    strangers: int = FIRST_MESSAGES_MAX
    #: Calls that wait for their turn to send a first frame.
    waiting: int = FIRST_MESSAGES_WAITING_MAX
    #: How long a call may wait for its turn, in seconds.
    turn_s: float = FIRST_MESSAGE_TURN_S
    #: How long the turn of a call may take, in seconds.
    join_s: float = FIRST_MESSAGE_S
    #: How long the turn of a call may take while other calls wait, in seconds.
    hurry_s: float = FIRST_MESSAGE_CROWDED_S
    #: gRPC connections, and also calls of all kinds.
    connections: int = CALLS_MAX

    def turns(self) -> Turns:
        """Return turns for sending a first frame."""
        return Turns(
            self.strangers, self.waiting, wait_s=self.turn_s, use_s=self.join_s, hurry_s=self.hurry_s
        )


OPTIONS = [
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    # TCP_USER_TIMEOUT detects a silent worker host or a cut link after 8 to 10 s. Keepalive sets it to
    # its own timeout, 8 s after the last data or ping was sent. With 5 s, a link that was cut for 6 s
    # under traffic ended the job. The kernel answers for the worker, so a stopped or busy process is
    # late, not lost.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.http2.ping_timeout_ms", 86_400_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without these options gRPC receives up to 16 MiB of each stream before the server reads it. 256
    # calls that were refused without reading took 490 MiB. With the probe, gRPC would choose these
    # larger HTTP/2 frames on its own.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # End connections without a call, and connections that do not complete the HTTP/2 handshake.
    ("grpc.max_connection_idle_ms", int(CONNECTION_IDLE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", int(CONNECTION_HANDSHAKE_S * 1000)),
    # Workers ping to notice a silent network. The server must not answer with too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]

#: gRPC status by error code; see proto/README.md, "Errors".
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
    14: grpc.StatusCode.INTERNAL,
    15: grpc.StatusCode.UNAUTHENTICATED,
    16: grpc.StatusCode.DATA_LOSS,
    17: grpc.StatusCode.ABORTED,
    18: grpc.StatusCode.DEADLINE_EXCEEDED,
    19: grpc.StatusCode.ABORTED,
}


class GrpcServer:
    """Server of an engine on one address. Health checks and reflection are open to everyone.

    Args:
        engine: handles the frames of all streams.
        data_port: offered to workers if given.
        credentials: without them connections are not encrypted.
        tokens: without them no call needs a token.
        drain: implements the Drain call; without it there is no such call.
        shares_port: whether the parent process holds the port.
        limits: limits of simultaneous load.
    """

    def __init__(
        self,
        engine: Engine,
        data_port: DataPort | None = None,
        *,
        credentials: grpc.ServerCredentials | None = None,
        tokens: TokenTable | None = None,
        drain: Drain | None = None,
        shares_port: bool = False,
        limits: Limits = Limits(),
    ) -> None:
        self._engine = engine
        self._data_port = data_port
        self._credentials = credentials
        self._tokens = tokens
        self._drain = drain
        self._shares_port = shares_port
        self._limits = limits
        self._turns = limits.turns()
        self._siblings: tuple[int, ...] = ()
        self._outboxes: set[Outbox] = set()
        self._encoder = Encoder()
        self._heap = Heap()
        self._lobby = LobbyCalls(engine, tokens, self._turns, self._refuse)
        self._health = health.aio.HealthServicer()
        # Calls have a limit too, because a health check may watch forever.
        self._server = grpc.aio.server(
            options=[
                *OPTIONS,
                ("grpc.max_allowed_incoming_connections", limits.connections),
                # Otherwise two servers could share one port without an error.
                ("grpc.so_reuseport", int(shares_port)),
            ],
            maximum_concurrent_rpcs=limits.connections,
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            # To clients, Status and Drain are calls with one request and one answer.
            "Status": grpc.stream_stream_rpc_method_handler(self._status),
            "Lobby": grpc.stream_stream_rpc_method_handler(self._lobby.serve),
        }
        if drain is not None:
            handlers["Drain"] = grpc.stream_stream_rpc_method_handler(self._on_drain)
        shown = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                # These have their own turns, because calls that send no Join must not delay health
                # checks.
                *open_services(self._health, shown, limits.turns(), self._heap),
            )
        )

    def bind(self, bind: str) -> int:
        """Bind all addresses of HOST:PORT and return the port.

        Raises:
            OSError: an address cannot be bound.
        """
        host, wanted = split_address(bind)
        if not self._shares_port:
            check_address(host, wanted)  # gRPC would not say why it cannot bind
        ips = ips_of(host)
        is_ipv4_any = IPV4_ANY in ips
        port = wanted or (free_port(host) if len(ips) > 1 or is_ipv4_any else 0)
        with kept_from_ipv6(port) if is_ipv4_any else contextlib.nullcontext():
            for ip in ips:
                port = self._add(join_host_and_port(ip, port))
        return port

    def _add(self, address: str) -> int:
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None

    async def start(self, siblings: Sequence[int] = ()) -> None:
        """Start serving. `siblings` are the ports of the other processes."""
        self._siblings = tuple(siblings)
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def not_serving(self) -> None:
        """Make health checks report that the reducer does not serve."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """End all streams."""
        # Moved streams do not end when the server stops. gRPC would cancel their calls and log errors.
        for outbox in list(self._outboxes):
            outbox.drop(ReducerUnavailable("the reducer has stopped"))
        await self._server.stop(grace_s)

    def paths(self) -> list[Path]:
        """Return the paths to workers whose data uses TCP. Call it on the loop's thread."""
        return [path for outbox in self._outboxes if (path := outbox.path()) is not None]

    async def _status(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answer without reading the request, which is empty."""
        try:
            check_status(self._tokens, context.invocation_metadata() or (), peer_of(context))
        except ReductionError as error:
            self._refuse(context, error)
            return
        await context.write(wire.status_to_wire(replace(self._engine.status(), siblings=self._siblings)))

    async def _on_drain(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Ask all processes to drain, and answer. The request is empty and is not read."""
        assert self._drain is not None
        try:
            check_drain(self._tokens, context.invocation_metadata() or (), peer_of(context))
        except ReductionError as error:
            self._refuse(context, error)
            return
        if not self._engine.jobs.is_draining:
            self._engine.lines.log(log, logging.INFO, "drain", "", "peer=%s asks to drain", peer_of(context))
        self._drain.ask()
        await context.write(wire.drain_to_wire(self._drain.timeout_s))

    async def _session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            data = await self._first_message(context)
            if data is not grpc.aio.EOF:
                certificate = certificate_of(context.auth_context())
                outbox = Outbox(
                    self._engine,
                    self._encoder,
                    self._data_port,
                    self._siblings,
                    peer_of(context),
                    certificate,
                )
                reader = asyncio.create_task(self._read(context, outbox, data))
                del data  # otherwise this stack frame would keep it alive during the whole call
                await self._serve(context, outbox, reader)
        except ReductionError as error:
            self._refuse(context, error)
        finally:
            self._heap.give_back_soon()

    async def _first_message(self, context: Context) -> Any:
        """Return the first message, which must be a Join, or EOF.

        Raises:
            Unauthenticated: a token is missing.
            ResourceExhausted: the call got no turn in time, or did not use it.
            MalformedFrame: the message is too long for a Join.
        """
        check_call(self._tokens, context.invocation_metadata() or (), peer_of(context))
        return await self._turns.read(context, WORKER_CONTROL_BYTES_MAX)

    def _refuse(self, context: Context, error: ReductionError) -> None:
        """End a call that has no stream, as soon as its handler returns.

        No message is sent, because some gRPC clients hang if they do not read it. `context.abort`
        is not used, because its exception would keep the call until the next garbage collection.
        """
        self._engine.note_refused_call(peer_of(context), error)
        context.set_code(STATUS[error.code])
        context.set_details(str(error))

    async def _serve(self, context: Context, outbox: Outbox, reader: asyncio.Task[None]) -> None:
        """Serve a stream until its reader, its writer or its data connection ends."""
        if len(self._outboxes) >= self._limits.streams:
            limit = f"{self._limits.streams} streams are open, which is this reducer's limit"
            outbox.reject(ResourceExhausted(f"{limit}: try another, or later"))
        self._outboxes.add(outbox)
        writer = asyncio.create_task(self._write(context, outbox))
        ended = asyncio.create_task(outbox.data_ended.wait())
        try:
            await asyncio.wait((reader, writer, ended), return_when=asyncio.FIRST_COMPLETED)
            outbox.close()
            await asyncio.wait((writer, ended) if outbox.has_moved else (writer,), timeout=LINGER_S)
            if outbox.error is not None:
                context.set_code(STATUS.get(outbox.error.code, grpc.StatusCode.INTERNAL))
                context.set_details(str(outbox.error))
        finally:
            self._outboxes.discard(outbox)
            label = outbox.label
            outbox.drop()
            for task in (reader, writer, ended):
                task.cancel()
            for end in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(end, Exception) and not context.cancelled():
                    text = "a stream's task failed %s reason=%r"
                    self._engine.lines.log(log, logging.WARNING, type(end).__name__, "", text, label, end)

    async def _read(self, context: Context, outbox: Outbox, data: Any) -> None:
        """Pass on `data` and then all later messages, until either side ends the stream."""
        try:
            frame = wire.worker_frame_from_wire(data)
            outbox.receive(
                check_join(self._tokens, frame, context.invocation_metadata() or (), peer_of(context))
            )
            while not outbox.is_closed:
                del frame, data  # otherwise a payload would stay alive until the next one arrives
                data = await context.read()
                if data is grpc.aio.EOF:
                    return
                frame = wire.worker_frame_from_wire(data)
                outbox.receive(frame)
            # The stream is closed, but the writer may still have frames to send.
            await asyncio.Event().wait()
        except ReductionError as error:
            outbox.reject(error)
        except MemoryError as error:
            outbox.reject(
                ResourceExhausted(f"there is no memory for a message that arrived: {shortage(error)}")
            )

    @staticmethod
    async def _write(context: Context, outbox: Outbox) -> None:
        async for data in outbox.drain():
            await context.write(data)
