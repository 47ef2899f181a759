"""The TCP plane, worker side: a stream begins on gRPC, and moves to the data port that the reducer offers.

    joining   Join is sent on gRPC; all later frames wait for the Welcome
    dialling  the Welcome offered a port: connect, show the key, wait for the answer, confirm it
    on gRPC   no port was offered, or it did not answer in time, so frames go over gRPC. The port is
              dialled again from time to time, and the stream moves as soon as it answers
    on TCP    sending: Moved is the last frame on gRPC, and all others go over the connection;
              receiving: first the remaining gRPC frames up to Moved, then the connection

The gRPC call stays open after the move, so that both planes notice lost peers in the same way.

If the call uses TLS, the connection always does too, with the same certificate.

A reducer on this host is reached at a UNIX socket instead of the port, unless TLS is on. Payloads are
then not copied: each side reads them in the memory of the other (reduction/transports/shared).
This side copies a result as soon as it arrives, and counts it in memory that the reducer reads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from typing import Any

from reduction import wire
from reduction.blocking import look_up
from reduction.client.access import OPEN, Access
from reduction.client.grpc_client import GrpcEndpoint
from reduction.errors import MalformedFrame, ReducerUnavailable, ReductionError
from reduction.log_limit import LINES
from reduction.model import Join, Moved, Push, ReducerFrame, Result, Welcome, WorkerFrame
from reduction.pacing import Sent
from reduction.process.place import local_socket, own_host
from reduction.transports import shared, tcp
from reduction.transports.interface import ResultSink
from reduction.transports.shared import OwnMemory, Sharing, is_possible

log = logging.getLogger(__name__)

#: Timeout for connecting to the data port, including the handshake, in seconds.
DIAL_S = 3.0
#: Pauses before the data port is dialled again, in seconds; the last one repeats.
REDIAL_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
#: How long one half of a stream may outlive the other, in seconds. It is well below the grace period that a rank has
#: to dial again (worker_plugin/core/membership/judge.py). If the reducer's reason arrives later than this, the next
#: Join reports it as well.
LINGER_S = 0.3
_COUNTER_BYTES = 8


class TcpEndpoint:
    """A remote reducer at HOST:PORT whose streams move to its data port. Make all calls on the loop's thread.

    Args:
        address: HOST:PORT of the gRPC plane.
        is_required: whether a stream that cannot move ends with an error; otherwise it stays on
            gRPC.
        access: credentials for the reducer.
        memory: holds the contributions; None shares nothing with reducers on this host.
    """

    def __init__(
        self, address: str, *, is_required: bool, access: Access = OPEN, memory: OwnMemory | None = None
    ) -> None:
        self.address = address
        #: None if nothing is shared, or no longer can be. With TLS all data that leaves this process is encrypted.
        self.memory = memory if is_possible() and not is_required and access.tls is None else None
        #: None without TLS.
        self.tls_context = access.tls_context
        self.is_required = is_required
        #: Why the data port did not answer last time; empty if it did. If it did not, new streams do not wait for it.
        self.why_not_tcp = ""
        self._grpc = GrpcEndpoint(address, access)

    def open(self, sink: ResultSink) -> TcpStream:
        """Open a stream; see `ReducerEndpoint.open`."""
        return TcpStream(self, self._grpc, sink)

    async def close(self) -> None:
        """End all streams and the connection."""
        await self._grpc.close()


class TcpStream:
    """One stream; see `ReducerStream`. Also the `Sink` of its gRPC call and the `Handler` of its connection."""

    def __init__(self, endpoint: TcpEndpoint, grpc: GrpcEndpoint, sink: ResultSink) -> None:
        self._endpoint = endpoint
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        #: Frames queued after the Join until the plane is known; None once it is known.
        self._waiting: list[WorkerFrame] | None = None
        self._has_joined = False
        self._dialling: asyncio.Task[None] | None = None
        self._connection: tcp.Connection | None = None
        #: The UNIX socket of a reducer on this host; empty for others.
        self._local_socket = ""
        self._sharing: Sharing | None = None
        #: Number of results that this side has copied. The reducer reads it.
        self._copied: memoryview | None = None
        self._error: ReductionError | None = None
        self._has_moved = False
        self._is_closing = False
        self._call_ended = False
        #: Ends the call or the connection when it outlives the other by LINGER_S.
        self._timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._call = grpc.open(self)

    # ---- from the client ----

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame. The payload of a push is sent without a copy."""
        if self._is_closing:
            return
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self._send(frame)

    def _send(self, frame: WorkerFrame) -> None:
        if self._connection is None:
            self._call.send(frame)
            if isinstance(frame, Join) and not self._has_joined:
                self._has_joined = True
                self._waiting = []
        elif isinstance(frame, Push):
            place = None if self._sharing is None else self._sharing.place(frame.payload)
            if place is None:
                self._connection.send(tcp.push_header(frame), frame.payload)
            else:
                self._connection.send(tcp.push_header(frame, len(place)), place)
        else:
            data = wire.worker_frame_to_wire(frame)
            self._connection.send(tcp.control_header(data), data)

    def close(self) -> None:
        """End the stream after the frames sent so far. The sink is no longer asked for destinations."""
        self._is_closing = True
        if self._waiting is None:  # otherwise `_go_on` ends it, after the queued frames
            self._stop_dialling()
            self._go_on()

    def _stop_dialling(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()

    async def wait_closed(self) -> None:
        """Wait until `on_closed` has been called."""
        await self._closed.wait()

    def divert(self) -> None:
        """Receive the rest of a payload that is in flight into memory other than the sink's."""
        if self._connection is not None:
            self._connection.divert()

    @property
    def sent(self) -> Sent | None:
        """See `RemoteStream.sent`."""
        return None if self._connection is None or self._sharing is not None else self._connection.sent

    def pace(self, bytes_per_s: int) -> None:
        """See `RemoteStream.pace`."""
        if self._connection is not None:
            self._connection.pace(bytes_per_s)

    @property
    def descriptor(self) -> int:
        """Descriptor of the connection for `fork`, or -1 if there is no connection."""
        return -1 if self._connection is None else self._connection.fileno()

    @property
    def plane(self) -> str:
        """See `RemoteStream.plane`."""
        if self._connection is None:
            return ""
        if self._sharing is not None:
            return "shared memory"
        return "tcp" if self._endpoint.tls_context is None else "tcp with TLS"

    # ---- from gRPC ----

    def on_frame(self, frame: ReducerFrame) -> None:
        """See `Sink.on_frame`."""
        if isinstance(frame, Welcome):
            self._on_welcome(frame)
        if isinstance(frame, Moved):
            self._has_moved = True
            if self._connection is not None:
                self._connection.start()
            elif self._dialling is None:
                self._fail(MalformedFrame(f"{self._endpoint.address} moved a stream that did not ask for it"))
        else:
            self._sink.on_frame(frame)

    def on_closed(self, error: ReductionError | None) -> None:
        """Note that the call has ended. Frames still on the connection, perhaps an Abort, are received."""
        self._call_ended = True
        self._error = self._error or error
        self._stop_dialling()
        if self._connection is None or self._connection.is_closed:
            self._finish()
        elif not self._has_moved:
            self._connection.close()
        else:
            self._timer = self._loop.call_later(LINGER_S, self._connection.close)

    # ---- moving ----

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._waiting is None:
            return  # closed before, or a second Welcome
        if welcome.data_port:
            if self._endpoint.memory is not None and welcome.place.host == own_host():
                self._local_socket = local_socket(welcome.incarnation)
            self._dialling = self._loop.create_task(self._dial(welcome.data_port, welcome.data_key))
            if not self._endpoint.why_not_tcp or self._endpoint.is_required:
                return
        elif self._endpoint.is_required:
            self._fail(
                ReducerUnavailable(
                    f"{self._endpoint.address} offers no TCP data plane, but transport is 'tcp'"
                )
            )
            return
        self._go_on()

    async def _dial(self, port: int, key: bytes) -> None:
        """Move to the data port as soon as it answers. After the first failure the stream continues over gRPC."""
        endpoint = self._endpoint
        for pause_s in itertools.chain(REDIAL_S, itertools.repeat(REDIAL_S[-1])):
            reason = await self._try_to_move(port, key)
            if reason is None:
                break
            text = f"{endpoint.address} offers a data port, {port}, that cannot be used: {reason}"
            if endpoint.is_required:
                self._fail(ReducerUnavailable(f"{text}; transport is 'tcp'"))
                return
            if not endpoint.why_not_tcp:
                endpoint.why_not_tcp = f"data port {port}: {reason}"
                text += "; continuing over gRPC, which costs more CPU, and trying again"
                LINES.log(log, logging.WARNING, "no data port", endpoint.address, "%s", text)
            self._go_on()
            if self._is_closing:
                return
            await asyncio.sleep(pause_s)
        if endpoint.why_not_tcp:
            endpoint.why_not_tcp = ""
            text = "the data port of %s, %d, can be used now"
            LINES.log(log, logging.WARNING, "data port", endpoint.address, text, endpoint.address, port)
        self._dialling = None
        self._go_on()

    async def _try_to_move(self, port: int, key: bytes) -> str | None:
        """Dial once; return why that failed, or None if the stream has moved."""
        host = self._endpoint.address.rpartition(":")[0].strip("[]")
        try:
            async with asyncio.timeout(DIAL_S):
                sock = await self._connect_locally(key) or await self._connect(host, port, key)
        # TimeoutError and ssl.SSLError are OSErrors. An invalid host name raises ValueError.
        except (OSError, ValueError, MalformedFrame) as error:
            return str(error) or f"no answer within {DIAL_S:g} s"
        self._call.send(Moved())
        self._connection = tcp.Connection(sock, self._loop, self)
        if sock.family == socket.AF_UNIX:
            self._share(self._connection)
        if self._has_moved:
            self._connection.start()
        return None

    async def _connect(self, host: str, port: int, key: bytes) -> socket.socket | tcp.TlsSocket:
        """Return a connection after its handshake, to the first of the host's addresses that answers."""
        failure = OSError(f"{host} has no address")
        for family, _, _, _, address in await asyncio.wrap_future(look_up(host, port)):
            try:
                return await self._greet(socket.socket(family, socket.SOCK_STREAM), address, key, host)
            except OSError as error:
                failure = error
        raise failure

    async def _connect_locally(self, key: bytes) -> socket.socket | tcp.TlsSocket | None:
        """Return a connection to a reducer on this host, or None if it is on another host or does not answer there."""
        if not self._local_socket:
            return None
        try:
            return await self._greet(
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), self._local_socket, key
            )
        except (OSError, MalformedFrame) as error:
            self._note_unshared(str(error))
            return None

    def _share(self, connection: tcp.Connection) -> None:
        """Tell the reducer where this side counts the results that it has copied."""
        memory = self._endpoint.memory
        assert memory is not None
        memory.want()
        self._sharing = Sharing(connection, memory)
        counter = memory.allocate(_COUNTER_BYTES)
        counter[:] = 0
        place = self._sharing.place(counter.data)
        if place is None:
            self._note_unshared(memory.refusal)
            return
        self._copied = counter.data.cast("Q")
        connection.send(tcp.counter_header(len(place)), place)

    def _note_unshared(self, reason: str) -> None:
        address = self._endpoint.address
        text = "%s is on this host, but no memory is shared with it: %s"
        LINES.log(log, logging.INFO, "unshared", address, text, address, reason)

    async def _greet(
        self, sock: socket.socket, address: tuple[Any, ...] | str, key: bytes, host: str = ""
    ) -> socket.socket | tcp.TlsSocket:
        """Connect, show the key, and confirm the answer. With TLS, `host` must be in the certificate."""
        channel: socket.socket | tcp.TlsSocket = sock
        try:
            tcp.prepare(sock)
            await self._loop.sock_connect(sock, address)
            if self._endpoint.tls_context is not None:
                channel = tcp.TlsSocket(sock, self._endpoint.tls_context, host)
                await channel.handshake(self._loop)
            await tcp.send_all(self._loop, channel, tcp.PREAMBLE + key)
            answer = await tcp.receive_exactly(self._loop, channel, len(tcp.PREAMBLE), "it refused our key")
            if answer != tcp.PREAMBLE:
                raise MalformedFrame("it is not a data port")
            await tcp.send_all(self._loop, channel, tcp.PREAMBLE)
        except BaseException:
            sock.close()
            raise
        return channel

    def _go_on(self) -> None:
        """Send the frames that waited for their plane to be known, and end the stream if `close` was called."""
        waiting, self._waiting = self._waiting or (), None
        for frame in waiting:
            self._send(frame)
        if not self._is_closing:
            return
        if self._connection is not None:
            self._connection.divert()
            self._connection.finish()
        else:
            self._call.close()

    # ---- from the connection ----

    def payload_memory(self, header: tcp.Header) -> memoryview:
        """See `tcp.Handler`."""
        if self._sharing is not None and (memory := self._sharing.memory_for(header)) is not None:
            return memory
        if header.flags & tcp.IS_PLACE or header.kind != tcp.RESULT:
            return tcp.control_payload(header)
        tcp.check_payload(header, "Result")
        return self._memory_for_result(header, header.length)

    def _memory_for_result(self, header: tcp.Header, nbytes: int) -> memoryview:
        memory = None
        if not self._is_closing:
            memory = self._sink.destination(header.epoch, header.seq, header.chunk, nbytes)
        return memoryview(bytearray(nbytes)) if memory is None else memory

    def on_message(self, header: tcp.Header, payload: memoryview) -> None:
        """See `tcp.Handler`."""
        if header.kind == tcp.RESULT:
            if self._sharing is not None and header.flags & tcp.IS_PLACE:
                payload = self._copy(header, self._sharing.payload(payload))
            self._sink.on_frame(
                Result(
                    header.epoch, header.seq, header.chunk, header.held_or_minimum, payload, header.checksum
                )
            )
        elif self._sharing is not None and header.kind in (tcp.SHOW, tcp.HIDE):
            self._sharing.on_message(header)
        else:
            self._sink.on_frame(wire.reducer_frame_from_wire(tcp.control_frame(header, payload)))

    def _copy(self, header: tcp.Header, lent: memoryview) -> memoryview:
        """Copy a result into this process, and count it. The reducer may then overwrite its own copy."""
        if self._copied is None:
            raise MalformedFrame("a shared result, although no counter was offered")
        memory = self._memory_for_result(header, lent.nbytes)
        shared.copy(lent, memory)
        self._copied[0] += 1
        return memory

    def on_end(self, error: Exception | None) -> None:
        """See `tcp.Handler`."""
        if isinstance(error, tcp.CannotShare):
            self._endpoint.memory = None  # the next stream uses TCP
            self._note_unshared(str(error))
        if isinstance(error, ReductionError):
            self._error = self._error or error
        elif error is not None:
            self._error = self._error or ReducerUnavailable(f"{self._endpoint.address}: {error}")
        if self._call_ended:
            self._finish()
        else:
            self._end_call()

    def _fail(self, error: ReductionError) -> None:
        self._error = self._error or error
        self._is_closing = True
        self._end_call()

    def _end_call(self) -> None:
        """End the call, but keep receiving for LINGER_S: the reducer may still send its reason, an Abort."""
        self._call.close()
        self._timer = self._loop.call_later(LINGER_S, self._call.cancel)

    def _finish(self) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        # Free them even if a reference to this stream remains.
        self._connection = self._sharing = self._copied = None
        self._sink.on_closed(self._error)
        self._closed.set()
