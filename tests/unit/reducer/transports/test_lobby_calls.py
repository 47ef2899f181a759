"""Answers of the lobby: one at a time per call, with jobs taking turns, so that none gets more than its share."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from reduction import wire
from reduction.limits import LOBBY_ANSWER_BYTES, LOBBY_ENTRY_BYTES_MAX
from reduction.model import LobbyRequest
from reduction.security.tokens import TokenTable

from reducer.core.lobby import Lobby
from reducer.transports import lobby_calls
from reducer.transports.lobby_calls import LobbyCalls
from reducer.transports.turns import Turns


class Context:
    """A worker's call, as gRPC shows it to the reducer."""

    def __init__(self, written, job, number, token=""):
        self.job = job
        self._written = written
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.requests = asyncio.Queue()
        self.may_write = asyncio.Event()
        entry = b"x" * LOBBY_ENTRY_BYTES_MAX
        self.requests.put_nowait(wire.lobby_request_to_wire(LobbyRequest(job, number.to_bytes(16), entry)))

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self):
        return self._metadata

    async def send_initial_metadata(self, metadata):
        pass

    async def read(self):
        return await self.requests.get()

    async def write(self, data):
        self._written.append((self.job, self, data))
        await self.may_write.wait()


def serve(workers, tokens=None, **times):
    """Serve calls of these (job, number, token) until nothing changes; return contexts, writes and the lobby."""

    async def scene():
        written = []
        engine = SimpleNamespace(lobby=Lobby())
        errors = []
        calls = LobbyCalls(
            engine,
            tokens,
            Turns(4, 1000, wait_s=10, use_s=10, hurry_s=10),
            lambda _, error: errors.append(error),
        )
        contexts = [Context(written, *worker) for worker in workers]
        tasks = [asyncio.create_task(calls.serve(None, context)) for context in contexts]
        while calls._is_telling or len(engine.lobby._streams) < len(contexts):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for context in contexts:
            context.requests.put_nowait(grpc.aio.EOF)
        await asyncio.gather(*tasks)
        assert not errors
        return contexts, written, engine.lobby

    return asyncio.run(scene())


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lobby_calls, "PAUSE_S", 0.0)
    monkeypatch.setattr(lobby_calls, "ANSWER_S", 0.0)


def test_a_worker_that_does_not_read_has_one_answer_waiting():
    contexts, written, _ = serve([("job", number) for number in range(40)])
    waiting = {context: data for _, context, data in written}
    assert len(written) == len(waiting) == len(contexts)
    assert max(map(len, waiting.values())) <= LOBBY_ANSWER_BYTES + LOBBY_ENTRY_BYTES_MAX


def test_a_small_job_waits_for_only_one_answer_to_a_large_one():
    """Jobs take turns, so it does not wait for one answer to each worker of the large job."""
    calls = LobbyCalls(SimpleNamespace(lobby=Lobby()), None, Turns(1, 1, wait_s=1, use_s=1, hurry_s=1), print)
    order = []

    async def scene():
        for number in range(12):
            calls._turns_to_hear[number] = SimpleNamespace(set=lambda number=number: order.append(number))
        calls._tell("large", tuple(range(10)))
        calls._tell("small", (10, 11))
        while calls._is_telling:  # noqa: ASYNC110
            await asyncio.sleep(0)

    asyncio.run(scene())
    assert sorted(order) == list(range(12))
    assert {10, 11} == set(order[1:4:2])


def test_workers_are_charged_to_a_job_and_token_line():
    tokens = TokenTable({"*": "any" * 8, "own": "own" * 8})
    workers = [("a", 1, "any" * 8), ("b@3", 2, "any" * 8), ("own", 3, "own" * 8)]
    _, _, lobby = serve(workers, tokens)
    accounts = {guest.account for room in lobby._rooms.values() for guest in room.guests.values()}
    assert accounts == {("a", "*"), ("b", "*"), ("own", "own")}
