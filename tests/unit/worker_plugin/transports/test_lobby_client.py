"""A worker's handling of lobby news, and how often it sends its own entry."""

import asyncio
from types import SimpleNamespace

import pytest
from reduction.errors import MalformedFrame
from reduction.limits import LOBBY_ENTRIES_MAX, LOBBY_S, LOBBY_SAYS_MAX, LOBBY_SAYS_PER_S
from reduction.model import LobbyEntry, LobbyNews, LobbyRequest

from reducer.core.fair_shares import Account
from reducer.core.lobby import Lobby
from worker_plugin.transports import lobby_client
from worker_plugin.transports.lobby_client import GONE_S, LobbyClient, _with_news

A, B = LobbyEntry(b"a" * 16, b"one", False), LobbyEntry(b"b" * 16, b"two", False)
GONE = LobbyEntry(A.nonce, b"one", True)


def entries(workers):
    return [known.entry for known in workers.values()]


def test_news_adds_to_what_is_known_and_an_older_reducer_sends_all():
    known = _with_news({}, LobbyNews((A,), adds=True), 0.0)
    known = _with_news(known, LobbyNews((B,), adds=True), 0.0)
    assert entries(known) == [A, B]
    assert entries(_with_news(known, LobbyNews((GONE,), adds=True), 0.0)) == [GONE, B]
    assert entries(_with_news(known, LobbyNews((B,)), 0.0)) == [B]


def test_a_worker_that_has_gone_is_forgotten_silently():
    known = _with_news({}, LobbyNews((GONE, B), adds=True), 5.0)
    assert entries(_with_news(known, LobbyNews((), adds=True), 5.0 + LOBBY_S)) == [GONE, B]
    assert entries(_with_news(known, LobbyNews((), adds=True), 5.1 + LOBBY_S)) == [B]


def believed(workers, now):
    return [known.believed(now).is_gone for known in workers.values()]


def test_a_worker_whose_call_breaks_has_gone_only_if_it_does_not_call_again():
    known = _with_news(_with_news({}, LobbyNews((A,), adds=True), 0.0), LobbyNews((GONE,), adds=True), 5.0)
    assert believed(known, 4.9 + GONE_S) == [False]
    assert believed(known, 5.0 + GONE_S) == [True]
    again = _with_news(known, LobbyNews((GONE,), adds=True), 5.5)
    assert believed(again, 5.0 + GONE_S) == [True], "it counts from the first time"
    assert believed(_with_news(known, LobbyNews((A,), adds=True), 5.5), 50.0) == [False]
    assert believed(_with_news({}, LobbyNews((GONE,), adds=True), 5.0), 5.0) == [True], "it was never seen"


def test_a_reducer_cannot_fill_a_worker_with_entries():
    crowd = tuple(LobbyEntry(number.to_bytes(16), b"x", False) for number in range(2 * LOBBY_ENTRIES_MAX))
    known = _with_news({}, LobbyNews(crowd, adds=True), 0.0)
    with pytest.raises(MalformedFrame, match="a lobby of 2049 workers"):
        _with_news(known, LobbyNews((A,), adds=True), 0.0)


def test_a_worker_never_sends_more_than_a_reducer_accepts(monkeypatch):
    now = [100.0]
    slept = []

    async def sleep(seconds):
        now[0] += max(0.0, seconds)
        slept.append(max(0.0, seconds))

    monkeypatch.setattr(lobby_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(lobby_client, "asyncio", SimpleNamespace(sleep=sleep))
    client = SimpleNamespace(_paid_until={"reducer": 0.0})
    lobby = Lobby()

    async def say():
        for _ in range(3 * LOBBY_SAYS_MAX):
            await LobbyClient._wait_to_say(client, "reducer")
            lobby.on_request(1, LobbyRequest("job", A.nonce, b"x"), Account("job"), now[0])

    asyncio.run(say())
    assert slept[: LOBBY_SAYS_MAX // 2] == [0.0] * (LOBBY_SAYS_MAX // 2), "at first it says all at once"
    assert slept[-1] == pytest.approx(1 / LOBBY_SAYS_PER_S)


def test_a_message_that_was_not_sent_costs_nothing():
    """Otherwise a worker that dials absent reducers five times a second could send nothing once they are back."""

    class Refused:
        async def wait_for_connection(self):
            raise ConnectionRefusedError

    async def dial():
        client = SimpleNamespace(_changed={"reducer": asyncio.Event()}, _paid_until={"reducer": 0.0})
        with pytest.raises(ConnectionRefusedError):
            await LobbyClient._write(client, Refused(), "reducer")
        return client._paid_until

    assert asyncio.run(dial()) == {"reducer": 0.0}
