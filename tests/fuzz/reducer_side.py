"""A whole reducer in front of workers that send anything, over gRPC calls and over the data port.

Whatever arrives, the reducer must not log a failed event (which is how the engine contains a bug), must not keep more
than it has reserved, must send nothing that a worker cannot decode, and must clean up every stream that ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fuzz import descriptors, frames, scripts
from fuzz.bugs import HANG_S, Bugs, run
from reduction import wire
from reduction.errors import ReductionError
from reduction.limits import ID_BYTES, JOB_FIXED_BYTES
from reduction.model import Join, Moved, Welcome
from reduction.process.place import local_socket
from reduction.transports import tcp

from reducer.engine import Engine
from reducer.transports.outbox import Encoder, Outbox
from reducer.transports.tcp_server import DataPort

MEMORY_LIMIT_BYTES = 8 << 20
STREAMS = 4


class _Seat:
    """The state of one worker: its outbox, and the frames that came out of it."""

    def __init__(self, engine: Engine, data_port: DataPort | None = None) -> None:
        self.outbox = Outbox(engine, Encoder(), data_port)
        self.welcome: Welcome | None = None
        self.is_over = False
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for data in self.outbox.drain():
            frame = wire.reducer_frame_from_wire(data)  # raises if a worker could not read it
            if isinstance(frame, Welcome):
                self.welcome = frame
        self.is_over = True

    def receive(self, data: bytes) -> None:
        """Do what the gRPC server does with a message on the call."""
        try:
            frame = wire.worker_frame_from_wire(data)
        except ReductionError as error:
            self.outbox.reject(error)
        else:
            self.outbox.receive(frame)

    async def end(self) -> None:
        """End the stream from this side; everything that belongs to it must end too."""
        self.outbox.close()
        async with asyncio.timeout(HANG_S):
            await self._reader
        self.outbox.drop()


def session(data: bytes) -> None:
    """Run messages on several gRPC calls. Operations: 0-4 a message, 5 a new call, 6 advance time, 7 drain."""
    run(_session(scripts.decode(data)))


async def _session(script: list[scripts.Record]) -> None:
    clock = itertools.count()
    with _engine(lambda: next(clock) * 0.03) as engine:
        seats = [_Seat(engine) for _ in range(STREAMS)]
        for operation, argument, data in script:
            place = argument % STREAMS
            match operation % 8:
                case 5:
                    await seats[place].end()
                    seats[place] = _Seat(engine)
                case 6:
                    engine.tick()
                case 7:
                    engine.drain()
                case _:
                    seats[place].receive(data)
            await asyncio.sleep(0)  # lets the writers run
            _check_memory(engine)
            if seats[place].is_over:  # a worker would redial
                await seats[place].end()
                seats[place] = _Seat(engine)
        for seat in seats:
            await seat.end()
        assert not engine.jobs.by_name, "a job without streams"
        assert not engine.jobs.streams, "a stream that has ended"


def data_port(data: bytes) -> None:
    """Run one connection to the data port. First byte: 0 for our greeting, 1 for one from the input; + 2 x pieces."""
    with frames.believed_headers():
        run(_data_port(data[0] if data else 0, data[1:]))


def local_port(data: bytes) -> None:
    """Run one connection to the data port's UNIX socket. Operations: 0-6 bytes, 7 bytes and descriptor `argument`."""
    with frames.believed_headers(), descriptors.nothing_stays():
        run(_local_port(scripts.decode(data)))


async def _data_port(how: int, data: bytes) -> None:
    async with _moving(b"") as (port, seat), asyncio.timeout(HANG_S):
        with socket.create_connection(("127.0.0.1", port.port)) as sock:
            sock.setblocking(False)
            # Reset at the end, since thousands of connections a second would otherwise use up all ports.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            with _refusals():
                if how % 2 == 0:
                    await _greet(sock, seat)
                step = max(1, len(data) // (how // 2 % 8 + 1))
                for start in range(0, len(data), step):
                    await asyncio.get_running_loop().sock_sendall(sock, data[start : start + step])
                    await asyncio.sleep(0)
                await _see_the_end(sock, seat)


async def _local_port(script: list[scripts.Record]) -> None:
    name = os.urandom(ID_BYTES)
    async with _moving(name) as (_, seat), asyncio.timeout(HANG_S):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(local_socket(name))
            sock.setblocking(False)
            with _refusals():
                await _greet(sock, seat)
                for record in script:
                    await descriptors.send(sock, record)
                await _see_the_end(sock, seat)


@asynccontextmanager
async def _moving(local_name: bytes) -> AsyncIterator[tuple[DataPort, _Seat]]:
    """Yield a data port and a worker that may move to it. Nothing may remain afterwards."""
    with _engine() as engine:
        port = DataPort()
        port.start("127.0.0.1", 0, local_name)
        seat = _Seat(engine, port)
        seat.outbox.receive(Join("left", frames.LIFE, 0, 1, frames.NONCES[0], "h", 0, 1 << 16))
        await asyncio.sleep(0)
        assert seat.welcome is not None
        yield port, seat
        await seat.end()
        port.stop()
        async with asyncio.timeout(HANG_S):
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - greetings have no event
                await asyncio.sleep(0)


@contextmanager
def _refusals() -> Iterator[None]:
    """Allow the reducer to refuse us, but not to hang."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError:
        pass


async def _greet(sock: socket.socket, seat: _Seat) -> None:
    loop = asyncio.get_running_loop()
    assert seat.welcome is not None
    await loop.sock_sendall(sock, tcp.PREAMBLE + seat.welcome.data_key)
    assert await tcp.receive_exactly(loop, sock, len(tcp.PREAMBLE), "no answer") == tcp.PREAMBLE
    await loop.sock_sendall(sock, tcp.PREAMBLE)
    seat.outbox.receive(Moved())


async def _see_the_end(sock: socket.socket, seat: _Seat) -> None:
    """End our direction, and wait until the reducer has ended the other one."""
    sock.shutdown(socket.SHUT_WR)
    while await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
        pass
    if seat.outbox.has_moved:
        await seat.outbox.data_ended.wait()


@contextmanager
def _engine(*clock: object) -> Iterator[Engine]:
    engine = Engine(memory_limit_bytes=MEMORY_LIMIT_BYTES, **({"clock": clock[0]} if clock else {}))
    engine.jobs.incarnation = frames.INCARNATION
    with Bugs("reducer") as bugs:
        yield engine
        _check_memory(engine)
    bugs.raise_first()


def _check_memory(engine: Engine) -> None:
    jobs = engine.jobs
    assert jobs.memory_reserved_bytes <= jobs.memory_limit_bytes
    for job in jobs.by_name.values():
        kept = sum(view.nbytes for slot in job.slots.values() for view in slot.kept.values())
        assert kept <= job.reserved_bytes - JOB_FIXED_BYTES
        assert len(job.left) <= job.world_size
