"""Measure latency and bandwidth of one reducer process over the real data plane, as the only rank of a separate job.

The reducer treats it as any job: it joins, moves to the data port if that answers, and pushes chunks
whose sums come back. There is no other rank in the job, so a sum is what was pushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from typing import NamedTuple, Self, TypeVar

from reduction import limits
from reduction.client.access import Access
from reduction.client.tcp_client import TcpEndpoint
from reduction.errors import ReducerUnavailable, ReductionError, from_code
from reduction.model import (
    Abort,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Push,
    ReduceOp,
    ReducerFrame,
    Result,
    Start,
    Welcome,
)
from reduction.process.place import own_host
from reduction.transports.tcp.socket_options import PathState, path_state

T = TypeVar("T")

#: Bytes of a message, and chunks of one collective.
CHUNK_BYTES, CHUNKS = 64 << 10, 64
#: Maximum bytes in flight, which a reducer usually grants to a job on a short path.
WINDOW_MAX = limits.CREDIT_BYTES_USUAL
#: A chunk may be in flight this much longer than the minimum before the window shrinks, in seconds. This is
#: the target latency of workers. More would only fill queues, and cause losses for others.
LATENCY_S = 0.016
#: Fraction of a measurement, at its beginning, that does not count.
BEGINNING = 0.2
#: Empty pushes whose answers are timed.
PINGS = 50
#: Timeout for leaving, in seconds.
LEAVE_S = 0.5


class Connection(NamedTuple):
    """The kernel's state of the data connection; empty on gRPC."""

    #: Our own address.
    source: str = ""
    #: Bytes of a packet; 0 if the kernel does not report it.
    mss: int = 0
    path: PathState = PathState()


class Session:
    """A measuring stream and its `ResultSink`. It joins the job on entry and leaves it on exit.

    Args:
        address: HOST:PORT of the reducer process.
        access: credentials for the reducer.
        job: name of the job.
        timeout_s: timeout for any single answer.

    Raises:
        ReductionError: the reducer did not answer, or refused us; the message has the reason.
    """

    def __init__(self, address: str, access: Access, job: str, timeout_s: float) -> None:
        #: Whether a rank here would share memory with the reducer.
        self.is_near = False
        self._job = job
        self._timeout_s = timeout_s
        #: Number of collectives with results.
        self._seq = 0
        #: Bytes that may be in flight.
        self._credit = 0
        self._inbox: asyncio.Queue[ReducerFrame | ReductionError] = asyncio.Queue()
        self._endpoint = TcpEndpoint(address, is_required=False, access=access)
        self._stream = self._endpoint.open(self)

    async def __aenter__(self) -> Self:
        try:
            await self._join()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.send(Goodbye(self._seq, self._seq))
        self._stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._stream.wait_closed()
        await self._endpoint.close()

    async def _join(self) -> None:
        instance, nonce = os.urandom(limits.ID_BYTES), os.urandom(limits.ID_BYTES)
        # Several hosts may examine one reducer at the same time. The group makes each a separate job.
        group = f"doctor {nonce.hex()[:12]}"
        host = socket.gethostname()[: limits.HOST_BYTES_MAX]
        self._stream.send(Join(self._job, instance, 0, 1, nonce, host, 0, WINDOW_MAX, group=group))
        welcome = await self._until(Welcome)
        self._credit = min(welcome.credit_bytes, WINDOW_MAX)
        self.is_near = welcome.place.host == own_host()
        member = Member(self._endpoint.address, welcome.incarnation)
        self._stream.send(Hello(Configuration(instance, 1, CHUNK_BYTES, (member,)), 0))
        await self._until(Start)

    @property
    def plane(self) -> str:
        """The data plane of the stream: "tcp" or "grpc", or one of them "with TLS"."""
        grpc = "grpc" if self._endpoint.tls_context is None else "grpc with TLS"
        return self._stream.plane or grpc

    @property
    def why_not_tcp(self) -> str:
        """Why the stream is not on the data port; empty if it is, or if none is offered."""
        return self._endpoint.why_not_tcp

    @property
    def connection(self) -> Connection:
        """The data connection."""
        with contextlib.suppress(OSError, AttributeError):
            with socket.socket(fileno=os.dup(self._stream.descriptor)) as sock:
                mss = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                return Connection(str(sock.getsockname()[0]), mss, path_state(sock))
        return Connection()

    async def ping(self) -> list[float]:
        """Return the seconds from each of PINGS empty pushes to its result. Call it before `pump`."""
        taken = []
        for _ in range(PINGS):
            began = time.monotonic()
            self._push(self._seq, 0, 0, memoryview(b""))
            await self._until(Result)
            taken.append(time.monotonic() - began)
            self._seq += 1
        return taken

    async def pump(self, seconds: float) -> float:
        """Push for this many seconds as fast as sums come back, and return bytes per second.

        The beginning does not count, because TCP finds its rate there.

        Raises:
            ReductionError: the stream ended.
        """
        payload = memoryview(bytearray(CHUNK_BYTES))
        window, chunk = 4 * CHUNK_BYTES, 0
        pushed_at: deque[float] = deque()
        began, first, last, least, count = time.monotonic(), 0.0, 0.0, float("inf"), 0
        counts_from = began + seconds * BEGINNING
        while True:
            is_over = time.monotonic() - began >= seconds
            while not is_over and (len(pushed_at) + 1) * CHUNK_BYTES <= window:
                pushed_at.append(time.monotonic())
                self._push(self._seq + chunk // CHUNKS, chunk % CHUNKS, CHUNKS, payload)
                chunk += 1
            if not pushed_at:
                break
            await self._until(Result)
            last = time.monotonic()
            if first:
                count += 1
            elif last >= counts_from:
                first = last
            taken = last - pushed_at.popleft()
            least = min(least, taken)
            step = CHUNK_BYTES if taken < least + LATENCY_S else -CHUNK_BYTES
            window = min(max(window + step, 2 * CHUNK_BYTES), self._credit)
        self._seq += -(-chunk // CHUNKS)
        return count * CHUNK_BYTES / (last - first) if last > first else 0.0

    def _push(self, seq: int, chunk: int, chunks: int, payload: memoryview) -> None:
        """Push a chunk of a collective of `chunks` whole chunks, all zeros."""
        numel = chunks * CHUNK_BYTES // DType.FLOAT32.itemsize
        collective = Collective(ReduceOp.SUM, DType.FLOAT32, numel, chunks)
        self._stream.send(Push(1, seq, chunk, collective, seq, payload))

    async def _until(self, kind: type[T]) -> T:
        """Return the next frame of this kind.

        Raises:
            ReductionError: there was none in time, or the reducer ended the stream.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while not isinstance(frame := await self._inbox.get(), kind):
                    if isinstance(frame, Abort):
                        raise from_code(frame.code, f"{self._endpoint.address}: {frame.message}")
                    if isinstance(frame, ReductionError):
                        raise frame
        except TimeoutError:
            text = f"{self._endpoint.address} has not answered for {self._timeout_s:g} s"
            raise ReducerUnavailable(text) from None
        return frame

    # ---- as `ResultSink` ----

    def destination(self, epoch: int, seq: int, chunk: int, nbytes: int) -> None:
        """See `ResultSink.destination`. The transport may choose the memory."""

    def on_frame(self, frame: ReducerFrame) -> None:
        """See `Sink.on_frame`."""
        self._inbox.put_nowait(frame)

    def on_closed(self, error: ReductionError | None) -> None:
        """See `Sink.on_closed`."""
        text = f"{self._endpoint.address} ended the stream"
        self._inbox.put_nowait(error or ReducerUnavailable(text))
