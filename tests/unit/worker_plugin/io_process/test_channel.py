"""The channel between a rank and its I/O process: message boundaries and order, descriptors, a slow peer, the end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest
from support.processes.shortages import no_descriptors

from worker_plugin.io_process.channel import MESSAGE_BYTES_MAX, PIECE_BYTES, Channel


class End:
    """One end, and everything it received."""

    def __init__(self, sock, on_message=None):
        self.messages = []
        self.ended_with = []
        self.ended = asyncio.Event()
        self._came = asyncio.Event()
        self._on_message = on_message
        self.channel = Channel(sock, asyncio.get_running_loop(), self.take, self.end)
        self.channel.start()

    def take(self, message, descriptor):
        if self._on_message is not None:
            self._on_message()
        self.messages.append((message, descriptor))
        self._came.set()

    def end(self, error):
        self.ended_with.append(error)
        self.ended.set()

    async def wait_for(self, count):
        async with asyncio.timeout(10):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()


class Pipe:
    """Has a descriptor."""

    def __init__(self, descriptor):
        self.descriptor = descriptor


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_messages_keep_their_order_and_descriptors_their_message():
    async def scenario():
        left, right = map(End, pair())
        reading, writing = os.pipe()
        left.channel.send("first", 1)
        left.channel.send("second", [2, None], described=Pipe(reading))
        left.channel.send("third", {"a": "b"})
        os.close(reading)  # it was sent immediately
        await right.wait_for(3)
        assert [message for message, _ in right.messages] == [
            ["first", 1],
            ["second", [2, None]],
            ["third", {"a": "b"}],
        ]
        numbers = [descriptor for _, descriptor in right.messages]
        assert numbers[0] == numbers[2] == -1
        os.write(writing, b"through")
        assert os.read(numbers[1], 10) == b"through"
        assert not os.get_inheritable(numbers[1])
        os.close(numbers[1])
        os.close(writing)
        right.channel.send("back")
        await left.wait_for(1)
        left.channel.close()
        right.channel.close()

    run(scenario)


def test_a_peer_that_does_not_read_holds_nobody_up_and_loses_nothing():
    async def scenario():
        ours, theirs = pair()
        left = End(ours)
        count = 500
        for number in range(count):
            left.channel.send(number, "x" * 5000)  # more than the kernel buffers
        assert not left.channel.is_flushed
        right = End(theirs)
        await right.wait_for(count)
        assert [message[0] for message, _ in right.messages] == list(range(count))
        assert left.channel.is_flushed
        left.channel.close()
        await right.ended.wait()

    run(scenario)


def test_the_end_is_reported_once_and_ends_sending():
    async def scenario():
        left, right = map(End, pair())
        assert len(left.channel.descriptors) == 1
        left.channel.close()
        left.channel.close()
        assert left.channel.descriptors == []
        await right.ended.wait()
        assert right.ended_with == [None]
        assert right.channel.descriptors == []
        left.channel.send("nothing")
        right.channel.send("nothing")
        left.channel.start()  # the loop was going to start it, and it was closed first
        assert left.ended_with == []

    run(scenario)


def test_a_peer_that_is_gone_while_we_send_ends_the_channel():
    async def scenario():
        ours, theirs = pair()
        left = End(ours)
        theirs.close()
        left.channel.send("lost")
        assert left.channel.is_flushed
        await left.ended.wait()
        assert left.ended_with == [None]

    run(scenario)


def test_a_message_that_cannot_be_handled_ends_it_with_the_error(caplog):
    def fail():
        raise KeyError("region 7")

    async def scenario():
        ours, theirs = pair()
        left, right = End(ours), End(theirs, fail)
        left.channel.send("unknown")
        await left.ended.wait()
        assert [type(error) for error in right.ended_with] == [KeyError]

    run(scenario)
    assert "could not be handled" in caplog.text


def test_a_message_that_is_too_long_is_refused():
    async def scenario():
        left, right = map(End, pair())
        left.channel.send("x" * (MESSAGE_BYTES_MAX - 10))
        await right.wait_for(1)
        with pytest.raises(ValueError, match=f"the limit is {MESSAGE_BYTES_MAX}"):
            left.channel.send("x" * MESSAGE_BYTES_MAX)
        left.channel.close()
        right.channel.close()

    run(scenario)


def test_a_collective_is_sent_in_pieces():
    async def scenario():
        left, right = map(End, pair())
        payload = bytes(range(256)) * 1000
        left.channel.send_bytes(7, memoryview(payload))
        left.channel.send("whole", 7)
        await right.wait_for(-(-len(payload) // PIECE_BYTES) + 1)
        *pieces, last = [message for message, _ in right.messages]
        assert last == ["whole", 7]
        assert {(name, seq) for name, seq, _, _ in pieces} == {("bytes", 7)}
        assert [offset for _, _, offset, _ in pieces] == list(range(0, len(payload), PIECE_BYTES))
        assert b"".join(piece for *_, piece in pieces) == payload
        left.channel.close()
        right.channel.close()

    run(scenario)


def test_a_descriptor_that_cannot_be_sent_or_received_does_not_hold_up_its_message(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ETOOMANYREFS, "Too many references")

    async def scenario():
        left, right = map(End, pair())
        pipe = Pipe(left.channel.descriptors[0])
        with no_descriptors(0):
            left.channel.send("first", described=pipe)
            await right.wait_for(1)
        monkeypatch.setattr(socket, "send_fds", refuse)
        left.channel.send("second", described=pipe)
        await right.wait_for(2)
        assert right.messages == [(["first"], -1), (["second"], -1)]
        left.channel.close()
        right.channel.close()

    run(scenario)
