"""The worker's side of the TCP plane, tested with a reducer that does what ours would not."""

import asyncio

import pytest
from conformance.places import Arena, Recorder
from conformance.scripted import CREDIT, ScriptedReducer
from reduction import limits, wire
from reduction.client import tcp_client
from reduction.errors import DataCorrupted, MalformedFrame, ReducerUnavailable
from reduction.model import (
    Abort,
    Goodbye,
    Join,
    Minimum,
    Moved,
    Peer,
    Peers,
    Presence,
    Result,
    Start,
    Welcome,
)
from reduction.transports import tcp

LONG_S = 1000.0


def message(seq, payload):
    return tcp.result_header(Result(1, seq, 0, 0, memoryview(payload))) + payload


def _peer(rank):
    return Peer(rank, bytes(16), "h" * limits.HOST_BYTES_MAX, Presence.PRESENT)


def control(frame):
    data = wire.reducer_frame_to_wire(frame)
    return tcp.control_header(data) + data


@pytest.fixture
def no_linger(monkeypatch):
    """Keep the linger timer from ending anything."""
    monkeypatch.setattr(tcp_client, "LINGER_S", LONG_S)


# ---- order ----


async def test_frames_on_the_call_before_moved_come_first():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        await reducer.opened(sink)
        reducer.writer.write(control(Minimum(2)) + message(0, b"result"))
        reducer.say(Minimum(1))
        reducer.say(Start(1, 0))
        assert [await sink.frames.get() for _ in range(3)][1:] == [Minimum(1), Start(1, 0)]
        reducer.say(Moved())
        assert await sink.frames.get() == Minimum(2)
        assert bytes((await sink.frames.get()).payload) == b"result"


async def test_a_frame_on_the_call_after_moved_is_accepted_too():
    # The reason why a connection ended arrives this way.
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        await reducer.moved(sink)
        assert type(await sink.frames.get()) is Welcome
        reducer.writer.write(control(Minimum(1)))
        assert await sink.frames.get() == Minimum(1)
        reducer.writer.close()
        reducer.say(Abort(7, "why"))
        reducer.end_call()
        assert await sink.frames.get() == Abort(7, "why")
        assert await sink.closed is None


async def test_frames_sent_while_dialing_go_out_first_and_in_order():
    async with ScriptedReducer() as reducer:
        stream = await reducer.opened(Recorder())
        for held in range(5):
            stream.send(Goodbye(held, 0))
        expected = b"".join(
            tcp.control_header(data) + data
            for data in (wire.worker_frame_to_wire(Goodbye(held, 0)) for held in range(5))
        )
        assert await reducer.reader.readexactly(len(expected)) == expected


# ---- messages that no reducer sends ----

BAD = {
    "another kind": (tcp.pack_header(9, *[0] * 11), "a message of kind 9"),
    "a push": (tcp.pack_header(tcp.PUSH, 1, 1, 0, 4, *[0] * 7) + bytes(4), "a message of kind 2"),
    "a long frame": (
        tcp.control_header(bytes(limits.REDUCER_CONTROL_BYTES_MAX + 1)),
        f"a frame of {limits.REDUCER_CONTROL_BYTES_MAX + 1} bytes",
    ),
    "a long result": (
        tcp.pack_header(tcp.RESULT, 0, 0, 0, limits.CHUNK_BYTES_MAX + 1, *[0] * 7),
        f"length of Result.payload is {limits.CHUNK_BYTES_MAX + 1}; allowed: 0 to {limits.CHUNK_BYTES_MAX}",
    ),
    "no frame": (tcp.control_header(b"\xff\xff") + b"\xff\xff", "2 bytes are not a ReducerFrame"),
    "a damaged frame": (tcp.control_header(b"ab") + b"ac", "a frame of 2 bytes arrived damaged"),
    "an empty frame": (tcp.control_header(b""), "a reducer frame of 0 bytes has no body"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_message_ends_the_stream_with_a_typed_error(name):
    data, text = BAD[name]
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        await reducer.moved(sink)
        reducer.writer.write(control(Minimum(1)) + data + control(Minimum(2)))
        assert type(await sink.frames.get()) is Welcome
        assert await sink.frames.get() == Minimum(1)
        # The worker has ended its half of the call; the reducer ends the other half, as ours does.
        reducer.end_call()
        error = await sink.closed
        assert type(error) is (DataCorrupted if name == "a damaged frame" else MalformedFrame)
        assert str(error).startswith(text)
        assert sink.frames.empty()


async def test_moved_without_an_offer():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = reducer.endpoint.open(sink)
        stream.send(Join("job", bytes(16), 0, 1, bytes(16), "host", 0, CREDIT))
        reducer.say(Welcome(bytes(16), CREDIT))
        reducer.say(Moved())
        reducer.end_call()
        error = await sink.closed
        assert type(error) is MalformedFrame
        assert "moved a stream that did not ask for it" in str(error)
        await stream.wait_closed()


async def test_a_second_welcome_moves_nothing():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = await reducer.moved(sink)
        before = stream.descriptor
        reducer.offer()
        assert [type(await sink.frames.get()) for _ in range(2)] == [Welcome, Welcome]
        reducer.writer.write(control(Minimum(1)))
        assert await sink.frames.get() == Minimum(1)
        assert stream.descriptor == before


# ---- memory of the sink ----


async def half_a_result(reducer, sink):
    """Open a stream on which 50 of 100 bytes of a result have been placed; return it and the memory of the result."""
    stream = await reducer.moved(sink)
    reducer.writer.write(message(0, b"x" * 50 + b"y" * 50)[: tcp.HEADER_BYTES + 50])
    while sink._arriving is None or bytes(sink._arriving[1][:50]) != b"x" * 50:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return stream, sink._arriving[0]


@pytest.mark.parametrize("how", ["close", "divert"])
async def test_memory_that_the_sink_takes_back_is_left_alone(how):
    # By then it may hold the result of another collective, and the link may have another stream.
    async with ScriptedReducer() as reducer:
        sink = Arena()
        stream, memory = await half_a_result(reducer, sink)
        before = bytes(memory)
        sink._arriving = None
        arrived = []
        sink.on_frame = arrived.append
        getattr(stream, how)()
        reducer.writer.write(b"y" * 50 + control(Minimum(1)))
        while len(arrived) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert bytes(memory) == before
        assert bytes(arrived[0].payload) == b"x" * 50 + b"y" * 50


async def test_nothing_is_placed_after_close():
    async with ScriptedReducer() as reducer:
        sink = Arena()
        stream = await reducer.moved(sink)
        reducer.writer.write(message(0, b"placed"))
        assert type(await sink.frames.get()) is Welcome
        assert bytes((await sink.frames.get()).payload) == b"placed"
        sink.destination = None  # would raise
        stream.close()
        sink.on_frame = sink.frames.put_nowait
        reducer.writer.write(message(1, b"not placed"))
        assert bytes((await sink.frames.get()).payload) == b"not placed"


# ---- ends that must not need a timer ----


@pytest.mark.usefixtures("no_linger")
async def test_a_call_that_ends_before_moved_ends_the_stream_at_once():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = await reducer.opened(sink)
        while stream.descriptor < 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reducer.end_call()
        assert await sink.closed is None
        assert stream.descriptor == -1


@pytest.mark.usefixtures("no_linger")
async def test_data_on_the_connection_when_the_call_ends_still_arrives():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        await reducer.moved(sink)
        payload = bytes(range(256)) * 4096
        reducer.writer.write(message(0, payload) + control(Abort(7, "why")))
        reducer.writer.write_eof()
        reducer.end_call()
        assert type(await sink.frames.get()) is Welcome
        assert bytes((await sink.frames.get()).payload) == payload
        assert await sink.frames.get() == Abort(7, "why")
        assert await sink.closed is None


@pytest.mark.parametrize("half", ["call", "data"])
async def test_the_remaining_half_is_ended_in_bounded_time(half, monkeypatch):
    monkeypatch.setattr(tcp_client, "LINGER_S", 0.05)
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = await reducer.moved(sink)
        reducer.writer.write(control(Minimum(1)))
        assert type(await sink.frames.get()) is Welcome
        assert await sink.frames.get() == Minimum(1)
        if half == "data":
            reducer.end_call()
        else:
            reducer.writer.close()
        assert await sink.closed is None
        await stream.wait_closed()
        assert await reducer.reader.read() == b""


@pytest.mark.usefixtures("no_linger")
async def test_a_lost_reducer_is_reported_unavailable_once():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = await reducer.moved(sink)
        reducer.writer.write(control(Minimum(1)))
        assert type(await sink.frames.get()) is Welcome
        assert await sink.frames.get() == Minimum(1)
        reducer.writer.transport.abort()
        await reducer._server.stop(0)
        assert type(await sink.closed) is ReducerUnavailable
        await stream.wait_closed()


async def test_frames_after_the_end_are_dropped():
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        stream = await reducer.moved(sink)
        reducer.writer.close()
        reducer.end_call()
        await sink.closed
        stream.send(Goodbye(0, 0))
        stream.divert()
        stream.close()
        stream.close()
        assert stream.descriptor == -1
        assert [type(frame) for frame in sink.frames._queue] == [Welcome]


async def test_peers_of_4096_ranks_fit_in_a_frame():
    ranks = tuple(_peer(rank) for rank in range(limits.WORLD_SIZE_MAX))
    async with ScriptedReducer() as reducer:
        sink = Recorder()
        await reducer.moved(sink)
        reducer.writer.write(control(Peers(ranks, False)))
        assert type(await sink.frames.get()) is Welcome
        assert (await sink.frames.get()).peers == ranks
