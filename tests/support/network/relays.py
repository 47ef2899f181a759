"""Obstacles between a worker and a reducer: a relay that holds bytes or cuts, and ports that are not data ports.

Each runs on its own loop and thread, so a test can use it from anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

ANSWER_S = 10.0


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST. Bytes that were written but not yet sent are lost."""
    with contextlib.suppress(OSError):  # already closed
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Way:
    """Listens on loopback until it is cut."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.count = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._there(self._listen(host, port))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset all connections and accept no more. Idempotent."""
        if not self._loop.is_closed():
            self._there(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(ANSWER_S)
            self._loop.close()

    def _there(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(ANSWER_S)

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, host, port)

    async def _cut(self) -> None:
        # asyncio does not close a connection if it is cancelled while accepting it, or if the server was closed after
        # the kernel had accepted it.
        while accepting := self._accepting():
            await asyncio.gather(*accepting)
        self._server.close()
        await asyncio.sleep(0)  # a connection that was just accepted is known only after its task has begun
        for writer in self._writers:
            reset(writer)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @staticmethod
    def _accepting() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if "_accept_connection2" in repr(task.get_coro())]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Relay(Way):
    """Forwards everything to another port, both ways."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target_port = target_port
        self._answers = asyncio.Event()
        self._answers.set()
        super().__init__(host)

    def hold_answers(self) -> None:
        """Hold back all answers until further notice."""
        self._loop.call_soon_threadsafe(self._answers.clear)

    def release_answers(self) -> None:
        """Let answers through again."""
        self._loop.call_soon_threadsafe(self._answers.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.append(back)
        await asyncio.gather(self._pass_on(reader, back, None), self._pass_on(there, writer, self._answers))

    @staticmethod
    async def _pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        while data := await reader.read(1 << 16):
            if gate is not None:
                await gate.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof()


class StrangePort(Way):
    """Sends the same bytes to every client. None sends nothing; b"" closes the connection."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        super().__init__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 10)
        if self._answer is None:
            return
        writer.write(self._answer)
        await writer.drain()
        if not self._answer:
            writer.close()


class ClosedPort:
    """A port that refuses connections and that no one else can take: it is bound but does not listen."""

    count = 0

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]

    def cut(self) -> None:
        """Release the port."""
        self._held.close()


BAD_PORTS: dict[str, Callable[[], ClosedPort | StrangePort]] = {
    "closed": ClosedPort,
    "silent": lambda: StrangePort(None),
    "hangs up": lambda: StrangePort(b""),
    "is another service": lambda: StrangePort(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}
