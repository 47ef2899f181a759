"""The lobby over gRPC: workers that enter, speak, and leave; tokens; and requests that a reducer refuses."""

import asyncio
import contextlib

import grpc
import pytest
from conformance.places import GrpcPlace
from reduction import wire
from reduction.limits import LOBBY_ANSWER_BYTES, LOBBY_REQUEST_BYTES_MAX
from reduction.model import LobbyEntry, LobbyRequest
from reduction.security.tokens import TokenTable, to_metadata

METHOD = "/reduction.v1.Reduction/Lobby"
A, B = b"a" * 16, b"b" * 16


@pytest.fixture
def guarded():
    place = GrpcPlace()
    place.tokens = TokenTable({"job": "t0ken" * 8, "other": "an0ther" * 6})
    return place


def enter(place, metadata=()):
    return place.channel().stream_stream(METHOD)(metadata=metadata)


async def say(call, nonce, entry=b"hello", job="job", *, takes_news=False):
    await call.write(wire.lobby_request_to_wire(LobbyRequest(job, nonce, entry, takes_news)))


def by_nonce(data):
    entries = wire.lobby_response_from_wire(data).entries
    return tuple(sorted(entries, key=lambda entry: entry.nonce))


async def hear(call, wanted):
    """Read until the lobby reports the wanted entries to a worker that takes all entries."""
    async with asyncio.timeout(10):
        while (heard := by_nonce(await call.read())) != wanted:
            assert len(heard) <= len(wanted)


async def hear_news(call):
    """Return the entries of one update, which may span several messages."""
    async with asyncio.timeout(10):
        entries = []
        while True:
            news = wire.lobby_response_from_wire(await call.read())
            assert news.adds
            entries += news.entries
            if not news.has_more:
                return entries


async def error_of(call):
    """Read a call until it ends with an error, and return the error."""
    while True:
        try:
            assert await call.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error


async def test_workers_see_each_other_enter_speak_and_leave(grpc_place):
    await grpc_place.running()
    first, second = enter(grpc_place), enter(grpc_place)
    await say(first, A)
    await hear(first, (LobbyEntry(A, b"hello", False),))
    await say(second, B)
    both = (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"hello", False))
    await hear(second, both)
    await hear(first, both)
    await say(second, B, b"more")
    await hear(first, (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"more", False)))
    second.cancel()
    await hear(first, (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"more", True)))
    first.cancel()


async def test_a_worker_that_takes_news_receives_only_changes(grpc_place):
    await grpc_place.running()
    first, second = enter(grpc_place), enter(grpc_place)
    await say(first, A, takes_news=True)
    assert await hear_news(first) == [LobbyEntry(A, b"hello", False)]
    large = b"x" * (LOBBY_ANSWER_BYTES - 1)
    await say(second, B, large, takes_news=True)
    assert await hear_news(first) == [LobbyEntry(B, large, False)]
    assert await hear_news(second) == [LobbyEntry(A, b"hello", False), LobbyEntry(B, large, False)]
    await say(second, B, b"more", takes_news=True)
    assert await hear_news(first) == [LobbyEntry(B, b"more", False)]
    second.cancel()
    assert await hear_news(first) == [LobbyEntry(B, b"more", True)]
    first.cancel()


async def test_a_worker_that_leaves_cleanly_is_also_reported_gone(grpc_place):
    await grpc_place.running()
    first, second = enter(grpc_place), enter(grpc_place)
    await say(first, A)
    await say(second, B)
    await hear(first, (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"hello", False)))
    await second.done_writing()
    await hear(first, (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"hello", True)))
    first.cancel()


async def test_each_job_needs_its_own_token(guarded):
    assert (await error_of(enter(guarded))).code() is grpc.StatusCode.UNAUTHENTICATED
    call = enter(guarded, to_metadata("an0ther" * 6))
    await say(call, A)
    error = await error_of(call)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "shows a wrong token for the lobby of job 'job'" in error.details()
    right = enter(guarded, to_metadata("t0ken" * 8))
    await say(right, A)
    await hear(right, (LobbyEntry(A, b"hello", False),))
    right.cancel()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("data", [b"\xff\xff", b"", bytes(LOBBY_REQUEST_BYTES_MAX + 1)])
async def test_a_malformed_request_ends_only_its_call(grpc_place, data, is_first):
    await grpc_place.running()
    other, call = enter(grpc_place), enter(grpc_place)
    await say(other, B)
    if not is_first:
        await say(call, A)
        await hear(call, (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"hello", False)))
    await call.write(data)
    assert (await error_of(call)).code() is grpc.StatusCode.INVALID_ARGUMENT
    await say(other, B, b"still here")
    gone = () if is_first else (LobbyEntry(A, b"hello", True),)
    await hear(other, (*gone, LobbyEntry(B, b"still here", False)))
    other.cancel()


async def test_a_call_speaks_for_one_worker(grpc_place):
    await grpc_place.running()
    call = enter(grpc_place)
    await say(call, A)
    await say(call, B)
    assert (await error_of(call)).code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("end", ["done_writing", "refused"])
async def test_a_call_ends_cleanly_while_its_first_answer_is_being_sent(grpc_place, end):
    await grpc_place.running()
    calls = [enter(grpc_place) for _ in range(40)]
    for number, call in enumerate(calls):
        await say(call, number.to_bytes(16, "big"))

    async def leave(call, after_s):
        await asyncio.sleep(after_s)
        if end == "done_writing":
            await call.done_writing()
        else:
            await call.write(b"not a LobbyRequest")
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()

    codes = await asyncio.gather(*(leave(call, 0.001 * number) for number, call in enumerate(calls)))
    wanted = grpc.StatusCode.OK if end == "done_writing" else grpc.StatusCode.INVALID_ARGUMENT
    assert set(codes) == {wanted}
