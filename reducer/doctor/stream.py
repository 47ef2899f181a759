"""One rank of a job of its own at one reducer process, over the real data plane. It blocks the calling thread.

The reducer treats it as any job: it joins, moves to the data port if that answers, and pushes chunks
whose sums come back. There is nobody else in the job, so a sum is what was pushed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import grpc
from reduction import limits, wire
from reduction.errors import ReducerUnavailable, ReductionError, from_code
from reduction.model import (
    Abort,
    Configuration,
    Goodbye,
    Hello,
    Join,
    Member,
    Moved,
    Push,
    ReducerFrame,
    Result,
    Start,
    Welcome,
    WorkerFrame,
)
from reduction.process.place import own_host
from reduction.text import printable
from reduction.transports import tcp

from reducer.observe.status import StatusAccess, channel_to
from reducer.transports.grpc_server import SERVICE

T = TypeVar("T")

#: How long connecting to a data port may take, greeting included; a worker waits as long.
DIAL_S = 3.0
#: Bytes of a message.
CHUNK_BYTES = 64 << 10
#: Bytes under way, as the reducer grants them at most to a job on a short path.
WINDOW_MAX = limits.CREDIT_BYTES_USUAL
#: Fields of struct tcp_info, include/uapi/linux/tcp.h: tcpi_snd_mss, tcpi_min_rtt, tcpi_bytes_sent,
#: tcpi_bytes_retrans.
_TCP_INFO = struct.Struct("=16xI128xI48xQQ")


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What the kernel knows of a connection."""

    mss: int = 0
    rtt_s: float = 0.0
    sent: int = 0
    resent: int = 0


class Stream:
    """A stream that has joined, on the data port if that answers. Close it in any case.

    Args:
        address: of the reducer process, HOST:PORT.
        access: certificates and tokens to show.
        job: name of the job; the token is that of its line.
        timeout_s: how long any single answer may take.

    Raises:
        ReductionError: it did not answer, or refused us; the message says why.
        ConfigError: a certificate cannot be used, or there is no token for the job.
    """

    def __init__(self, address: str, access: StatusAccess, job: str, timeout_s: float) -> None:
        #: Collectives whose results are here.
        self.seq = 0
        #: Bytes that may be under way.
        self.credit = 0
        self._address = address
        self._timeout_s = timeout_s
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._socket: socket.socket | None = None
        #: Why the stream is not on the data port; empty if it is, or if none is offered.
        self.why_not_tcp = ""
        #: Whether a rank here would share memory with the reducer.
        self.is_near = False
        self._tls = access.tls
        self._channel = channel_to(address, access.tls)
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            f"/{SERVICE}/Session"
        )
        metadata = access.metadata_of(job)
        self._answers = call(self._requests(), timeout=timeout_s + 60.0, metadata=metadata)
        self._inbox: queue.SimpleQueue[ReducerFrame | ReductionError] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_call, daemon=True)
        self._reader.start()
        try:
            self._join(job)
        except BaseException:
            self.close()
            raise

    @property
    def plane(self) -> str:
        """The data plane of the stream: "tcp" or "grpc", or one of them "with TLS"."""
        plane = "grpc" if self._socket is None else "tcp"
        return plane if self._tls is None else f"{plane} with TLS"

    @property
    def tcp_info(self) -> TcpInfo:
        """What the kernel knows of the data connection; zeros on gRPC, and where it does not tell."""
        with contextlib.suppress(OSError, struct.error, AttributeError):
            if self._socket is not None:
                data = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                mss, rtt_us, sent, resent = _TCP_INFO.unpack(data)
                return TcpInfo(mss, rtt_us / 1e6, sent, resent)
        return TcpInfo()

    @property
    def source(self) -> str:
        """Our own address on the data connection; empty on gRPC."""
        return "" if self._socket is None else str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Leave the job and end the stream."""
        with contextlib.suppress(OSError, ReductionError):
            self.send(Goodbye(self.seq, self.seq))
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.settimeout(0.5)
                while self._socket.recv(1 << 16):
                    pass
            self._socket.close()
        self._frames.put(None)
        self._reader.join(0.5)
        self._answers.cancel()
        self._channel.close()

    # ---- joining ----

    def _join(self, job: str) -> None:
        instance, nonce = os.urandom(limits.ID_BYTES), os.urandom(limits.ID_BYTES)
        # Several hosts look at one reducer at the same time; the group makes each a job of its own.
        group = f"doctor {nonce.hex()[:12]}"
        host = socket.gethostname()[: limits.HOST_BYTES_MAX]
        self.send(Join(job, instance, 0, 1, nonce, host, 0, WINDOW_MAX, group=group))
        welcome = self.until(Welcome)
        self.credit = min(welcome.credit_bytes, WINDOW_MAX)
        self.is_near = welcome.place.host == own_host()
        if welcome.data_port:
            self._move(welcome)
        member = Member(self._address, welcome.incarnation)
        self.send(Hello(Configuration(instance, 1, CHUNK_BYTES, (member,)), 0))
        self.until(Start)

    def _move(self, welcome: Welcome) -> None:
        host = self._address.rpartition(":")[0].strip("[]")
        sock = None
        try:
            sock = socket.create_connection((host, welcome.data_port), DIAL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.client_context().wrap_socket(sock, server_hostname=host)
            sock.sendall(tcp.PREAMBLE + welcome.data_key)
            if _receive(sock, len(tcp.PREAMBLE)) != tcp.PREAMBLE:
                raise OSError("it is not a data port")
            sock.sendall(tcp.PREAMBLE)
        except OSError as error:
            reason = f"no answer within {DIAL_S:g} s" if isinstance(error, TimeoutError) else str(error)
            self.why_not_tcp = f"data port {welcome.data_port}: {reason}"
            if sock is not None:
                sock.close()
            return
        sock.settimeout(self._timeout_s)
        self.send(Moved())
        self.until(Moved)
        self._socket = sock

    # ---- frames ----

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; it blocks while the connection is full."""
        if self._socket is None:
            self._frames.put(wire.worker_frame_to_wire(frame))
        elif isinstance(frame, Push):
            self._write(tcp.push_header(frame), frame.payload)
        else:
            data = wire.worker_frame_to_wire(frame)
            self._write(tcp.control_header(data), memoryview(data))

    def _write(self, header: bytes, payload: memoryview) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(b"".join((header, payload)))
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self._ended(error) from None

    def until(self, kind: type[T]) -> T:
        """Return the next frame of this kind.

        Raises:
            ReductionError: there was none in time, or the reducer said why there will be none.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            frame = self._read() if self._socket is not None else self._wait(deadline)
            if isinstance(frame, kind):
                return frame
            if isinstance(frame, Abort):
                raise from_code(frame.code, f"{self._address}: {frame.message}")
            if time.monotonic() > deadline:
                raise self._silent()

    def _wait(self, deadline: float) -> ReducerFrame:
        try:
            frame = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise self._silent() from None
        if isinstance(frame, ReductionError):
            raise frame
        return frame

    def _read(self) -> ReducerFrame:
        assert self._socket is not None
        try:
            head = tcp.parse_header(memoryview(_receive(self._socket, tcp.HEADER_BYTES)))
            if head.kind == tcp.RESULT:
                tcp.check_payload(head, "Result")
                payload = memoryview(_receive(self._socket, head.length))
                return Result(head.epoch, head.seq, head.chunk, head.held_or_minimum, payload)
            memory = tcp.control_payload(head)
            frame = memoryview(_receive(self._socket, len(memory)))
            return wire.reducer_frame_from_wire(tcp.control_frame(head, frame))
        except TimeoutError:
            raise self._silent() from None
        except OSError as error:
            raise self._ended(error) from None

    def _read_call(self) -> None:
        """Hand on what comes over gRPC, in a thread of its own: a call's iterator knows no time limit."""
        try:
            for data in self._answers:
                self._inbox.put(wire.reducer_frame_from_wire(data))
            self._inbox.put(ReducerUnavailable(f"{self._address} ended the stream"))
        except ReductionError as error:
            self._inbox.put(error)
        except grpc.RpcError as error:
            detail = error.details() if isinstance(error, grpc.Call) else error
            self._inbox.put(ReducerUnavailable(f"{self._address}: {printable(str(detail))}"))

    def _requests(self) -> Iterator[bytes]:
        while (data := self._frames.get()) is not None:
            yield data

    def _silent(self) -> ReductionError:
        return ReducerUnavailable(f"{self._address} has not answered for {self._timeout_s:g} s")

    def _ended(self, error: OSError) -> ReductionError:
        # The reason, if the reducer gave one, comes over the call.
        with contextlib.suppress(queue.Empty):
            frame = self._inbox.get(timeout=0.3)
            if isinstance(frame, Abort):
                return from_code(frame.code, f"{self._address}: {frame.message}")
        return ReducerUnavailable(f"{self._address}: {error}")


def _receive(sock: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionResetError("it ended the connection")
        view = view[got:]
    return data
