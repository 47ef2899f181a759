"""When `reducer drain` takes a process for ended, and what it says of one that is not."""

import socket

import pytest
from reduction.model import JobStatus, Peer, Presence, ReducerStatus

from reducer.observe import draining, status
from reducer.observe.draining import ask_to_drain, has_ended, waits_for
from reducer.observe.status import NoAnswer, StatusAccess, look_at
from reducer.observe.summary import Process

ONE, OTHER = b"1" * 16, b"2" * 16


def job(name, *presences):
    peers = tuple(Peer(rank, bytes([rank]), "host", presence) for rank, presence in enumerate(presences))
    return JobStatus(name, len(peers), peers, 1, True, 0, 0, 0, 0, 0, 1024, 4096, 0)


def answering(*jobs, address="127.0.0.1:1", incarnation=ONE):
    return Process(address, ReducerStatus("0.1.0", incarnation, 1.0, True, 0, 1, jobs))


def test_a_process_that_answers_has_not_ended_unless_it_is_another_one():
    assert not has_ended(answering(), ONE)
    assert has_ended(answering(incarnation=OTHER), ONE)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Process(f"127.0.0.1:{server.getsockname()[1]}", None, "no answer")
        assert not has_ended(silent, ONE)
    assert has_ended(silent, ONE)


def test_a_host_that_does_not_answer_is_not_taken_for_the_end(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert not has_ended(Process("10.255.255.1:1", None, "no answer"), ONE)


@pytest.mark.parametrize(
    ("process", "text"),
    [
        (answering(), ""),
        (
            answering(job("a", Presence.PRESENT, Presence.LEFT), job("b", Presence.PRESENT)),
            "waits for job a (1 of 2 ranks), job b (1 of 1 ranks)",
        ),
        (Process("127.0.0.1:1", None, "no route to host"), "does not answer: no route to host"),
    ],
)
def test_what_it_waits_for(process, text):
    assert waits_for(process) == text


def test_a_process_that_is_stopped_takes_no_longer_than_the_user_allows(monkeypatch):
    asked, left = [], []
    real = draining.call
    monkeypatch.setattr(status, "why_refused", lambda *_: asked.append("TLS"))
    monkeypatch.setattr(
        draining,
        "call",
        lambda method, to, left_s, access: left.append(left_s) or real(method, to, left_s, access),
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert look_at(address, 0.2, StatusAccess()).reason == "Deadline Exceeded"
        answers = ask_to_drain([address], 0.2, StatusAccess())
    assert (answers.processes, answers.refusals) == ({}, {address: "Deadline Exceeded"})
    assert (asked, left) == ([], [0.0])


def test_who_refuses_is_asked_why(monkeypatch):
    async def why(*_):
        return "it wants TLS"

    monkeypatch.setattr(status, "why_refused", why)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(NoAnswer, match="it wants TLS"):
        status.fetch(address, 30.0, StatusAccess())
