"""The lobby: members, their latest entries, and its bounds."""

import pytest
from reduction.errors import OutOfOrder, ResourceExhausted, UnsupportedVersion
from reduction.limits import (
    LOBBY_ANSWER_BYTES,
    LOBBY_ENTRIES_MAX,
    LOBBY_ENTRY_BYTES_MAX,
    LOBBY_S,
    LOBBY_SAYS_MAX,
    LOBBY_SAYS_PER_S,
    LOBBY_WORKER_BYTES,
)
from reduction.model import LobbyEntry, LobbyNews, LobbyRequest

from reducer.core.fair_shares import account_of
from reducer.core.lobby import Lobby

A, B = b"a" * 16, b"b" * 16


def say(lobby, stream, nonce, entry=b"hello", job="job", *, now=0.0, takes_news=True):
    return lobby.on_request(stream, LobbyRequest(job, nonce, entry, takes_news), account_of(job), now)


def hear(lobby, stream):
    """Return everything that a stream has not received yet."""
    entries = []
    while True:
        news = lobby.news(stream)
        entries += news.entries
        if not news.has_more:
            return entries


def test_a_worker_receives_everything_and_then_only_changes():
    lobby = Lobby()
    assert say(lobby, 1, B, b"first") == (1,)
    assert set(say(lobby, 2, A)) == {1, 2}
    assert say(lobby, 3, A, job="another") == (3,)
    assert lobby.news(1) == LobbyNews(
        (LobbyEntry(B, b"first", False), LobbyEntry(A, b"hello", False)), adds=True
    )
    assert lobby.news(1) == LobbyNews((), adds=True)
    say(lobby, 1, B, b"second")
    assert hear(lobby, 1) == [LobbyEntry(B, b"second", False)]
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", False), LobbyEntry(B, b"second", False)]
    assert hear(lobby, 3) == [LobbyEntry(A, b"hello", False)]
    assert lobby.news(9) == LobbyNews((), adds=True)


def test_one_workers_message_costs_one_entry_for_each_worker():
    lobby = Lobby()
    count = 512
    for number in range(count):
        say(lobby, number, number.to_bytes(16))
    assert {len(hear(lobby, number)) for number in range(count)} == {count}
    say(lobby, 7, (7).to_bytes(16), b"news")
    assert sum(len(hear(lobby, number)) for number in range(count)) == count


def test_answers_are_limited_and_entries_updated_in_between_come_once():
    lobby = Lobby()
    large = b"x" * (LOBBY_ANSWER_BYTES // 2 + 1)
    for number in range(4):
        say(lobby, number, number.to_bytes(16), large)
    first = lobby.news(0)
    assert [len(first.entries), first.has_more] == [2, True]
    say(lobby, 2, (2).to_bytes(16), b"small")
    rest = lobby.news(0)
    assert [entry.nonce[-1] for entry in rest.entries] == [3, 2]
    assert not rest.has_more


def test_departed_workers_are_shown_for_a_while_and_then_forgotten():
    lobby = Lobby()
    say(lobby, 1, A)
    say(lobby, 2, B)
    hear(lobby, 2)
    assert lobby.on_end(1, 5.0) == (2,)
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", True)]
    lobby.forget(5.0 + LOBBY_S)
    taken = lobby.shares.taken
    lobby.forget(5.1 + LOBBY_S)
    assert lobby.shares.taken == taken - LOBBY_WORKER_BYTES - 5
    lobby.on_end(2, 20.0)
    lobby.forget(100.0)
    assert lobby.shares.taken == 0


def test_an_ended_process_is_reported_once_its_call_is_over():
    lobby = Lobby()
    say(lobby, 1, A)
    say(lobby, 2, B)
    hear(lobby, 2)
    assert lobby.on_ended("job", A) == (), "it has another call"
    lobby.on_end(1, 5.0)
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", True)]
    assert lobby.on_ended("job", A) == (2,)
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", True, has_ended=True)]
    assert lobby.on_ended("job", b"?" * 16) == lobby.on_ended("other", A) == ()
    say(lobby, 3, A)  # a worker that lies
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", False)]


def test_departed_workers_are_not_forgotten_before_all_know():
    lobby = Lobby()
    say(lobby, 1, A)
    say(lobby, 2, B)
    hear(lobby, 2)
    lobby.on_end(1, 5.0)
    lobby.forget(1000.0)
    assert hear(lobby, 2) == [LobbyEntry(A, b"hello", True)]
    lobby.forget(1000.0)
    say(lobby, 3, A, now=1000.0)
    assert hear(lobby, 3) == [LobbyEntry(B, b"hello", False), LobbyEntry(A, b"hello", False)]


def test_a_returning_worker_is_present_again():
    lobby = Lobby()
    say(lobby, 1, A)
    assert say(lobby, 2, A, b"again") == (2,)  # before the reducer has noticed that the first call is over
    assert lobby.on_end(1, 1.0) == ()
    assert hear(lobby, 2) == [LobbyEntry(A, b"again", False)]
    lobby.on_end(2, 2.0)
    say(lobby, 3, A)
    assert hear(lobby, 3) == [LobbyEntry(A, b"hello", False)]


def test_a_stream_speaks_for_one_worker():
    lobby = Lobby()
    say(lobby, 1, A)
    with pytest.raises(OutOfOrder):
        say(lobby, 1, B)
    assert lobby.on_end(7, 0.0) == ()


def test_the_number_of_workers_is_limited():
    lobby = Lobby()
    for number in range(LOBBY_ENTRIES_MAX):
        say(lobby, number, number.to_bytes(16))
    with pytest.raises(ResourceExhausted, match=f"{LOBBY_ENTRIES_MAX} workers of job 'job'"):
        say(lobby, 9000, A)
    say(lobby, 9000, (0).to_bytes(16), b"one of them may say something else")


def test_a_job_at_its_limit_is_refused_and_another_one_is_not():
    lobby = Lobby(8 * LOBBY_WORKER_BYTES)
    large = b"x" * LOBBY_ENTRY_BYTES_MAX
    for number in range(4):  # rails count against their job, which has three quarters
        say(lobby, number, number.to_bytes(16), large, f"job@{number}")
    with pytest.raises(ResourceExhausted, match="the job and its token may have 0 bytes more"):
        say(lobby, 4, (4).to_bytes(16), b"x", "job@4")
    say(lobby, 100, A, large, "another")
    with pytest.raises(ResourceExhausted):
        say(lobby, 4, B, b"x", "job@0")
    say(lobby, 0, (0).to_bytes(16), b"shorter", "job@0")
    for stream in (*range(4), 100):
        lobby.on_end(stream, 0.0)
    lobby.forget(LOBBY_S + 1)
    assert lobby.shares.taken == 0


def test_a_worker_that_sends_too_much_is_refused_even_if_it_reconnects():
    lobby = Lobby()
    for _ in range(LOBBY_SAYS_MAX):
        say(lobby, 1, A)
    with pytest.raises(ResourceExhausted, match=f"sent {LOBBY_SAYS_MAX} messages"):
        say(lobby, 1, A)
    lobby.on_end(1, 0.0)
    with pytest.raises(ResourceExhausted):
        say(lobby, 2, A)
    say(lobby, 3, B)
    say(lobby, 2, A, now=1 / LOBBY_SAYS_PER_S)


def test_older_workers_receive_everything_at_once_unless_it_is_too_much():
    lobby = Lobby()
    say(lobby, 1, A, takes_news=False)
    say(lobby, 2, B)
    both = (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"hello", False))
    assert lobby.news(1) == lobby.news(1) == LobbyNews(both)
    assert hear(lobby, 2) == list(both)
    with pytest.raises(UnsupportedVersion, match="install the same version"):
        say(lobby, 2, B, b"x" * LOBBY_ANSWER_BYTES)
    with pytest.raises(UnsupportedVersion):
        say(lobby, 3, b"c" * 16, b"x" * LOBBY_ANSWER_BYTES)
    lobby.on_end(1, 0.0)
    lobby.on_end(2, 0.0)
    lobby.forget(LOBBY_S + 1)
    say(lobby, 4, B, b"x" * LOBBY_ENTRY_BYTES_MAX)
    with pytest.raises(UnsupportedVersion):
        say(lobby, 5, A, takes_news=False)
