"""The worker side of the TCP plane, where no whole reducer is needed."""

import asyncio

import pytest
from reduction.client.tcp_client import TcpEndpoint, TcpStream
from reduction.model import Ack, Join, Welcome

JOIN = Join("job", b"I" * 16, 0, 1, b"N" * 16, "h", 0, 4096)
OFFER = Welcome(b"R" * 16, 4096, 50052, b"K" * 32)


class Call:
    """Stands in for the gRPC call, and for the endpoint that opens it."""

    def __init__(self):
        self.sent = []
        self.is_closed = asyncio.Event()

    def open(self, sink):
        return self

    def send(self, frame):
        self.sent.append(frame)

    def close(self):
        self.is_closed.set()

    def cancel(self):
        pass


class Sink:
    """Accepts everything."""

    def __init__(self):
        self.frames = []

    def on_frame(self, frame):
        self.frames.append(frame)

    def on_closed(self, error):
        pass


@pytest.mark.parametrize("host", ["unix:/" + "x" * 64, "a\0b"])
def test_an_invalid_host_name_keeps_the_stream_on_grpc(host):
    """The address comes from rank 0 or a peer that claims to be it; gRPC accepts more forms than getaddrinfo."""

    async def scene():
        call = Call()
        stream = TcpStream(TcpEndpoint(f"{host}:1", is_required=False), call, Sink())
        stream.send(JOIN)
        stream.on_frame(OFFER)
        stream.send(Ack(1))
        stream.close()
        async with asyncio.timeout(20):
            await call.is_closed.wait()
        assert call.sent == [JOIN, Ack(1)]

    asyncio.run(scene())
