"""Strangers that load a reducer, of eight kinds.

    python -m benchmarks.micro.strangers no-token HOST:PORT --waves 6
    python -m benchmarks.micro.strangers data-port HOST:PORT --data-port PORT --seconds 6

Prints "ready" when the strangers have connected, and at the end the number of calls or connections by outcome. Those
that show a token show one of another job, because without a token a reducer would not read their data.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
from reduction import limits, wire
from reduction.model import Collective, DType, LobbyRequest, Push, ReduceOp
from reduction.security.tokens import to_metadata
from reduction.v1 import reduction_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Reduction"].full_name
CONNECTIONS, STREAMS = 8, 32
#: Number of sockets that do nothing, or next to nothing, and of concurrent ones that send garbage.
IDLE, BUSY = 1000, 16
WORKERS, WORKERS_PER_CONNECTION = 512, 8
#: A separate job for the strangers that show a token.
JOB = "strangers"
#: Seconds for staying strangers to connect.
COMING_S = 1.0
FRAME = wire.worker_frame_to_wire(
    Push(
        1,
        0,
        0,
        Collective(ReduceOp.SUM, DType.FLOAT32, limits.CHUNK_BYTES_MAX // 4, 7),
        0,
        memoryview(bytes(limits.CHUNK_BYTES_MAX)),
    )
)
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
]


@dataclass(slots=True)
class Strangers:
    """Targets, credentials and duration of the strangers."""

    address: str
    data_port: int
    metrics_port: int
    token: str
    #: They stop after this many seconds, or after this many waves if it is not 0 and they come in waves.
    seconds: float
    waves: int
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the calls."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def call(self, channel: grpc.aio.Channel, token: str | None, first: bytes) -> None:
        """Send a first message, and wait for the end of the call."""
        call = channel.stream_stream(f"/{SERVICE}/Session")(metadata=to_metadata(token))
        try:
            await call.write(first)
            while await call.read() is not grpc.aio.EOF:
                pass
            code = await call.code()
        except grpc.aio.AioRpcError as error:
            code = error.code()
        self.answers[code.name] += 1

    async def calls(self, token: str | None, first: Callable[[], bytes]) -> None:
        """Make CONNECTIONS x STREAMS concurrent calls, and repeat when the last of them has ended."""
        print("ready", flush=True)
        ends_at = time.monotonic() + self.seconds
        for wave in itertools.count(1):
            channels = [grpc.aio.insecure_channel(self.address, OPTIONS) for _ in range(CONNECTIONS)]
            await asyncio.gather(
                *(self.call(channel, token, first()) for channel in channels for _ in range(STREAMS))
            )
            for channel in channels:
                await channel.close()
            if wave == self.waves or (not self.waves and time.monotonic() > ends_at):
                return

    async def held(self, *tasks: Awaitable[None]) -> None:
        """Let tasks run until the time is up, and count those that are still running."""
        running = [asyncio.ensure_future(task) for task in tasks]
        await asyncio.sleep(COMING_S)
        print("ready", flush=True)
        await asyncio.sleep(self.seconds)
        self.answers["held"] += sum(not task.done() for task in running)

    async def socket(self, port: int, first: bytes, rest: bytes = b"") -> None:
        """Open a connection, send `first`, and then a byte of `rest` every second, until it is closed."""
        try:
            reader, writer = await asyncio.open_connection(self.place[0], port)
            writer.write(first)
            ended = asyncio.ensure_future(reader.read())
            for byte in rest:
                await asyncio.wait([ended], timeout=1.0)
                if ended.done():
                    break
                writer.write(bytes([byte]))
            await ended
            writer.close()
            self.answers["closed"] += 1
        except OSError:
            self.answers["refused or reset"] += 1

    async def sockets(self, port: int, first: bytes) -> None:
        """Open one connection after the other."""
        while True:
            await self.socket(port, first)


async def no_token(strangers: Strangers) -> None:
    await strangers.calls(None, lambda: FRAME)


async def wrong_token(strangers: Strangers) -> None:
    await strangers.calls("wr0ng" * 8, lambda: FRAME)


async def garbage(strangers: Strangers) -> None:
    await strangers.calls(strangers.token, lambda: os.urandom(64))


async def half_frames(strangers: Strangers) -> None:
    """Send calls through a relay that forwards half of their data, and then nothing."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_reducer, to_reducer = await asyncio.open_connection(*strangers.place)

        async def back() -> None:
            while data := await from_reducer.read(1 << 16):
                writer.write(data)
            writer.close()

        answering = asyncio.ensure_future(back())
        left = limits.CHUNK_BYTES_MAX * STREAMS // 2
        while left > 0 and (data := await reader.read(min(left, 1 << 16))):
            to_reducer.write(data)
            await to_reducer.drain()
            left -= len(data)
        await answering

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", OPTIONS) for _ in range(CONNECTIONS)]
    await strangers.held(
        *(strangers.call(channel, strangers.token, FRAME) for channel in channels for _ in range(STREAMS))
    )


async def grpc_port(strangers: Strangers) -> None:
    _, port = strangers.place
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    await strangers.held(*(strangers.socket(port, preface if n % 2 else b"") for n in range(IDLE)))


async def data_port(strangers: Strangers) -> None:
    port = strangers.data_port
    busy = (strangers.sockets(port, b"GET / HTTP/1.1\r\n\r\n") for _ in range(BUSY))
    await strangers.held(*(strangers.socket(port, b"") for _ in range(IDLE)), *busy)


async def lobby(strangers: Strangers) -> None:
    """Connect workers of one elastic job with the largest entries; none reads more than gRPC does on its own."""
    channels = [
        grpc.aio.insecure_channel(strangers.address, OPTIONS)
        for _ in range(WORKERS // WORKERS_PER_CONNECTION)
    ]

    async def worker(channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Lobby")(metadata=to_metadata(strangers.token))
        request = LobbyRequest(JOB, os.urandom(limits.ID_BYTES), os.urandom(limits.LOBBY_ENTRY_BYTES_MAX))
        try:
            await call.write(wire.lobby_request_to_wire(request))
        except grpc.aio.AioRpcError:
            pass
        strangers.answers[(await call.code()).name] += 1

    await strangers.held(*(worker(channel) for channel in channels for _ in range(WORKERS_PER_CONNECTION)))


async def metrics_port(strangers: Strangers) -> None:
    port, head = strangers.metrics_port, b"GET /livez HTTP/1.1\r\nX: "
    slow = (strangers.socket(port, head, b"x" * 1000) for _ in range(IDLE // 2))
    await strangers.held(*(strangers.socket(port, b"") for _ in range(IDLE // 2)), *slow)


#: Function and description of each kind by name.
KINDS: dict[str, tuple[Callable[[Strangers], Awaitable[None]], str]] = {
    "no-token": (no_token, "calls without a token, 4 MiB each"),
    "wrong-token": (wrong_token, "calls with a wrong token, 4 MiB each"),
    "garbage": (garbage, "first frames of random bytes"),
    "half-frames": (half_frames, "first frames of 4 MiB, half sent and held"),
    "grpc-port": (grpc_port, "idle connections to the gRPC port"),
    "data-port": (data_port, "idle and garbage connections to the data port"),
    "lobby": (lobby, "lobby workers with entries of 64 KiB"),
    "metrics-port": (metrics_port, "idle and slow HTTP connections to the metrics port"),
}


def main() -> None:
    """Run one kind."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("address")
    parser.add_argument("--data-port", type=int, default=0)
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--waves", type=int, default=0, help="stop after this many waves instead")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = Strangers(
        given.address, given.data_port, given.metrics_port, given.token, given.seconds, given.waves
    )
    asyncio.new_event_loop().run_until_complete(KINDS[given.kind][0](strangers))
    print(*(f"{name}={count}" for name, count in sorted(strangers.answers.items())), flush=True)
    os._exit(0)  # what is held ends with the process


if __name__ == "__main__":
    main()
