"""A reducer that sends what a test wants, on both planes."""

from __future__ import annotations

import asyncio

import grpc
from reduction import limits, wire
from reduction.client.tcp_client import TcpEndpoint, TcpStream
from reduction.model import Join, Moved, Welcome
from reduction.transports import tcp

from reducer.transports.grpc_server import SERVICE

CREDIT = 1 << 20


class ScriptedReducer:
    """A reducer for one stream of one worker."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._confirmed = asyncio.Event()

    async def __aenter__(self) -> ScriptedReducer:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        handlers = {"Session": grpc.stream_stream_rpc_method_handler(self._session)}
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.endpoint = TcpEndpoint(f"127.0.0.1:{port}", is_required=False)
        return self

    async def __aexit__(self, *_) -> None:
        await self.endpoint.close()
        self._listener.close()
        if self.writer is not None:
            self.writer.transport.abort()
        await self._server.stop(0)

    def say(self, frame) -> None:
        """Send a frame on the call."""
        self._said.put_nowait(wire.reducer_frame_to_wire(frame))

    def end_call(self) -> None:
        """End the call with status OK, after the frames queued before."""
        self._said.put_nowait(None)

    def offer(self) -> None:
        """Send a Welcome that offers our data port."""
        port = self._listener.sockets[0].getsockname()[1]
        self.say(Welcome(bytes(16), CREDIT, port, bytes(limits.DATA_KEY_BYTES)))

    async def opened(self, sink) -> TcpStream:
        """Open a stream that has confirmed its move; Moved is not sent yet."""
        stream = self.endpoint.open(sink)
        stream.send(Join("job", bytes(16), 0, 1, bytes(16), "host", 0, CREDIT))
        self.offer()
        await self._confirmed.wait()
        return stream

    async def moved(self, sink) -> TcpStream:
        """Open a stream that has moved to TCP."""
        stream = await self.opened(sink)
        self.say(Moved())
        return stream

    async def _session(self, requests, context):
        while (data := await self._said.get()) is not None:
            yield data

    async def _accept(self, reader, writer) -> None:
        self.reader, self.writer = reader, writer
        await reader.readexactly(len(tcp.PREAMBLE) + limits.DATA_KEY_BYTES)
        writer.write(tcp.PREAMBLE)
        assert await reader.readexactly(len(tcp.PREAMBLE)) == tcp.PREAMBLE
        self._confirmed.set()
