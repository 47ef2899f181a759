"""Ranks without a worker's code, on either plane: they send what a worker would never send."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Iterator

import grpc
from reduction import limits, wire
from reduction.errors import ReductionError, from_code
from reduction.model import Abort, Hello, Join, Moved, Push, ReducerFrame, Result, Start, Welcome
from reduction.transports import tcp
from reduction.v1 import reduction_pb2 as pb
from support.network.channels import NO_PROXY

ID = bytes(range(16))
#: Timeout of every wait for a reducer in this module, in seconds.
WAIT_S = 20.0


def join(job: str, **changes) -> Join:
    fields = {
        "job": job,
        "instance": ID,
        "rank": 0,
        "world_size": 1,
        "nonce": os.urandom(16),
        "host": "somewhere",
        "minimum": 0,
        "credit_bytes": limits.CREDIT_BYTES_ASKED,
    }
    return Join(**fields | changes)


class RawStream:
    """A Session call that sends exactly what a test passes it."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        options = [*NO_PROXY, ("grpc.max_send_message_length", -1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=options)
        method = self._channel.stream_stream(
            f"/{pb.DESCRIPTOR.services_by_name['Reduction'].full_name}/Session"
        )
        self._call = method(self._requests(), timeout=WAIT_S, metadata=metadata)

    def _requests(self) -> Iterator[bytes]:
        while (data := self._frames.get()) is not None:
            yield data

    def send(self, *frames) -> None:
        for frame in frames:
            self._frames.put(frame if isinstance(frame, bytes) else wire.worker_frame_to_wire(frame))

    def read(self) -> ReducerFrame:
        return wire.reducer_frame_from_wire(next(self._call))

    def read_until(self, kind: type) -> ReducerFrame:
        while not isinstance(frame := self.read(), kind | Abort):
            pass
        assert isinstance(frame, kind), frame
        return frame

    def error(self) -> tuple[ReductionError | None, grpc.StatusCode, str]:
        """Return the error of the Abort frame, and how the call ended."""
        error = None
        try:
            while True:
                frame = self.read()
                if isinstance(frame, Abort):
                    error = from_code(frame.code, frame.message)
        except StopIteration:
            return error, self._call.code(), self._call.details()
        except grpc.RpcError:
            return error, self._call.code(), self._call.details()

    def close(self) -> None:
        self._frames.put(None)
        self._call.cancel()
        self._channel.close()


class DataConnection:
    """A connection to a data port that sends exactly what a test passes it."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=WAIT_S)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        """Return exactly `count` bytes, or fewer if the stream ends earlier."""
        data = b""
        while len(data) < count and (more := self.socket.recv(count - len(data))):
            data += more
        return data

    def rest(self) -> bytes:
        """Return all bytes until the stream ends, which it must. A reset is an end, too."""
        data = b""
        try:
            while more := self.socket.recv(1 << 16):
                data += more
        except ConnectionError:
            pass
        return data

    def close(self) -> None:
        self.socket.close()


class MovedRank:
    """A rank that has joined over gRPC and moved to the data port."""

    def __init__(self, address: str, job: str, **changes) -> None:
        self.address = address
        self.call = RawStream(address)
        self.call.send(join(job, **changes))
        self.welcome: Welcome = self.call.read_until(Welcome)
        self.data = DataConnection(address.rpartition(":")[0], self.welcome.data_port)
        self.data.send(tcp.PREAMBLE + self.welcome.data_key)
        assert self.data.receive(len(tcp.PREAMBLE)) == tcp.PREAMBLE
        self.data.send(tcp.PREAMBLE)
        self.call.send(Moved())
        self.call.read_until(Moved)

    def hello(self, configuration) -> None:
        self.send(Hello(configuration, 0))

    def send(self, frame) -> None:
        """Send a frame as a worker does."""
        if isinstance(frame, Push):
            self.data.send(tcp.push_header(frame) + bytes(frame.payload))
        else:
            data = wire.worker_frame_to_wire(frame)
            self.data.send(tcp.control_header(data) + data)

    def read(self) -> ReducerFrame:
        """Return the next frame of the data connection."""
        head = tcp.parse_header(self.data.receive(tcp.HEADER_BYTES))
        payload = self.data.receive(head.length)
        if head.kind == tcp.RESULT:
            return Result(head.epoch, head.seq, head.chunk, head.held_or_minimum, memoryview(payload))
        return wire.reducer_frame_from_wire(payload)

    def read_until(self, kind: type) -> ReducerFrame:
        while not isinstance(frame := self.read(), kind | Abort):
            pass
        assert isinstance(frame, kind), frame
        return frame

    def started(self, configuration) -> None:
        """Send Hello, and wait for the Start."""
        self.hello(configuration)
        self.read_until(Start)

    def error(self) -> ReductionError | None:
        """Wait until call and data connection have ended; return the error of the Abort, which arrives on either."""
        data = self.data.rest()
        self.data.close()
        while len(data) >= tcp.HEADER_BYTES:
            head = tcp.parse_header(data[: tcp.HEADER_BYTES])
            body, data = data[tcp.HEADER_BYTES :][: head.length], data[tcp.HEADER_BYTES + head.length :]
            if head.kind == tcp.CONTROL and isinstance(frame := wire.reducer_frame_from_wire(body), Abort):
                self.call.error()
                return from_code(frame.code, frame.message)
        return self.call.error()[0]

    def close(self) -> None:
        self.data.close()
        self.call.close()
