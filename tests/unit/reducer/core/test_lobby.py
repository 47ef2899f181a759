"""The lobby: who is there, what each has said last, and what is bounded."""

import pytest
from reduction.errors import OutOfOrder, ResourceExhausted
from reduction.limits import LOBBY_BYTES_MAX, LOBBY_ENTRIES_MAX, LOBBY_ENTRY_BYTES_MAX, LOBBY_S
from reduction.model import LobbyEntry, LobbyRequest

from reducer.core.lobby import OVERHEAD_BYTES, Lobby

A, B = b"a" * 16, b"b" * 16


def say(nonce: bytes, entry: bytes = b"hello", job: str = "job") -> LobbyRequest:
    return LobbyRequest(job, nonce, entry)


def test_all_workers_of_a_job_hear_what_each_says():
    lobby = Lobby()
    assert lobby.on_request(1, say(B, b"first")) == (1,)
    assert set(lobby.on_request(2, say(A))) == {1, 2}
    assert lobby.on_request(3, say(A, job="another")) == (3,)
    assert lobby.entries(1) == lobby.entries(2)
    assert lobby.entries(1) == (LobbyEntry(A, b"hello", False), LobbyEntry(B, b"first", False))
    lobby.on_request(1, say(B, b"second"))
    assert lobby.entries(2)[1] == LobbyEntry(B, b"second", False)


def test_who_has_gone_is_shown_for_a_while_and_then_forgotten():
    lobby = Lobby()
    lobby.on_request(1, say(A))
    lobby.on_request(2, say(B))
    assert lobby.on_end(1, 5.0) == (2,)
    assert lobby.entries(2)[0] == LobbyEntry(A, b"hello", True)
    lobby.forget(5.0 + LOBBY_S)
    assert len(lobby.entries(2)) == 2
    lobby.forget(5.1 + LOBBY_S)
    assert lobby.entries(2) == (LobbyEntry(B, b"hello", False),)
    lobby.on_end(2, 20.0)
    lobby.forget(100.0)
    assert lobby.entries(2) == ()


def test_a_worker_that_comes_back_is_there_again():
    lobby = Lobby()
    lobby.on_request(1, say(A))
    lobby.on_request(2, say(A, b"again"))  # before the reducer has noticed that the first call is over
    assert lobby.on_end(1, 1.0) == ()
    assert lobby.entries(2) == (LobbyEntry(A, b"again", False),)
    lobby.on_end(2, 2.0)
    lobby.on_request(3, say(A))
    assert lobby.entries(3) == (LobbyEntry(A, b"hello", False),)


def test_a_stream_speaks_for_one_worker():
    lobby = Lobby()
    lobby.on_request(1, say(A))
    with pytest.raises(OutOfOrder):
        lobby.on_request(1, say(B))
    assert lobby.on_end(7, 0.0) == ()


def test_the_number_of_workers_is_limited():
    lobby = Lobby()
    for number in range(LOBBY_ENTRIES_MAX):
        lobby.on_request(number, say(number.to_bytes(16)))
    with pytest.raises(ResourceExhausted, match=f"{LOBBY_ENTRIES_MAX} workers of job 'job'"):
        lobby.on_request(1000, say(A))
    lobby.on_request(1000, say((0).to_bytes(16), b"one of them may say something else"))


def test_the_bytes_of_all_jobs_are_limited_and_come_back():
    lobby = Lobby()
    large, count = b"x" * LOBBY_ENTRY_BYTES_MAX, LOBBY_BYTES_MAX // (LOBBY_ENTRY_BYTES_MAX + OVERHEAD_BYTES)
    for number in range(count):
        lobby.on_request(number, say(A, large, f"job {number}"))
    with pytest.raises(ResourceExhausted):
        lobby.on_request(count, say(A, large, "one more"))
    lobby.on_request(0, say(A, b"shorter", "job 0"))
    lobby.on_request(count, say(A, large[1000:], "one more"))
    for number in range(count + 1):
        lobby.on_end(number, 0.0)
    lobby.forget(LOBBY_S + 1)
    for number in range(count):
        lobby.on_request(number, say(A, large, f"job {number}"))
