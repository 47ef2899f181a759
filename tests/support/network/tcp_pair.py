"""A `Connection` and the bare socket at its other end, on a real event loop, to test `reduction.transports.tcp`.

Nothing here sleeps: tests wait for a state, and run() bounds every wait.
"""

import asyncio
import select
import socket
import struct
from contextlib import contextmanager
from functools import wraps

import uvloop
from reduction.model import Collective, DType, Push, ReduceOp, Result
from reduction.transports.tcp import HEADER_BYTES, Connection, control_header, push_header, result_header

HANG_S = 20.0
WHAT = Collective(ReduceOp.SUM, DType.FLOAT32, 64, 7)


def run(test, run_loop=uvloop.run, bugs=()):
    """Run a coroutine on the loop that production uses; the timeout only guards against hangs.

    `bugs` are the exceptions that the loop must have received from its callbacks.
    """

    raised = []

    async def bounded():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        async with asyncio.timeout(HANG_S):
            await test

    run_loop(bounded())
    assert [context.get("exception") for context in raised] == list(bugs), raised


def on_loop(test):
    """Turn a coroutine function into a test, using `run`."""

    @wraps(test)
    def ran(*arguments, **named):
        run(test(*arguments, **named))

    return ran


class Recorder:
    """A `Handler` that records messages and lets a test act inside its callbacks."""

    def __init__(self):
        self.placed = []
        self.messages = []
        self.ends = []
        #: Memory for the next payloads. If it is empty, each payload gets its own memory.
        self.memory = []
        self.on_place = self.on_payload = lambda header: None
        self._changed = asyncio.Event()

    def payload_memory(self, header):
        assert not self.ends, "on_end is the last call"
        self.placed.append(header)
        self._changed.set()
        self.on_place(header)
        return self.memory.pop(0) if self.memory else memoryview(bytearray(header.length))

    def on_message(self, header, payload):
        assert not self.ends, "on_end is the last call"
        self.messages.append((header, payload))
        self._changed.set()
        self.on_payload(header)

    def on_end(self, error):
        self.ends.append(error)
        self._changed.set()

    async def until(self, is_so):
        """Wait for a state."""
        while not is_so(self):
            self._changed.clear()
            await self._changed.wait()

    async def count(self, number):
        """Wait for `number` messages; return their sequence numbers and payloads."""
        await self.until(lambda own: len(own.messages) >= number)
        return [(header.seq, bytes(payload)) for header, payload in self.messages]

    async def end(self):
        """Wait for the end; return its error."""
        await self.until(lambda own: own.ends)
        await asyncio.sleep(0)
        assert len(self.ends) == 1
        return self.ends[0]


def unix_pair(**_):
    """Return sockets on which sent data has arrived when `send` returns."""
    return socket.socketpair()


def tcp_pair(receive_bytes=None):
    """Return connected TCP sockets on loopback; the first one has a receive buffer of this size."""
    with socket.socket() as listener:
        if receive_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        peer = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, peer


@contextmanager
def connected(make=unix_pair, **settings):
    """Yield a started Connection, its Recorder, and the socket at the other end."""
    sock, peer = make(**settings)
    sock.setblocking(False)
    peer.setblocking(False)
    handler = Recorder()
    connection = Connection(sock, asyncio.get_running_loop(), handler)
    connection.start()
    try:
        yield connection, handler, peer
    finally:
        connection.close()
        peer.close()


async def until(is_so):
    """Let the loop run until a condition holds that has no event."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def settle(connection):
    """Let the connection process everything that has arrived on its unix socket."""
    await until(lambda: not select.select([connection.fileno()], [], [], 0)[0])


async def send_all(peer, data):
    await asyncio.get_running_loop().sock_sendall(peer, data)


async def receive(peer, count):
    """Return exactly `count` bytes, or fewer if the stream ends earlier."""
    data = bytearray()
    while len(data) < count:
        more = await asyncio.get_running_loop().sock_recv(peer, count - len(data))
        if not more:
            break
        data += more
    return bytes(data)


def reset(peer):
    """Close a TCP socket so that the other end sees a reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def pattern(count, start=0):
    """Return bytes whose values show their position."""
    return bytes((start + index * 7) % 251 for index in range(count))


def result(seq, payload=b""):
    """Return a Result as bytes."""
    view = memoryview(payload)
    return result_header(Result(1, seq, 0, 0, view)) + bytes(view)


def push(seq, payload=b""):
    """Return a Push as bytes."""
    view = memoryview(payload)
    return push_header(Push(1, seq, 0, WHAT, 0, view)) + bytes(view)


def control(payload):
    """Return another frame as bytes."""
    return control_header(payload) + payload


assert len(result(0)) == HEADER_BYTES
