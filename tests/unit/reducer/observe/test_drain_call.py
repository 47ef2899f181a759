"""When `reducer drain` considers a process ended, and its report about one that is still running."""

import socket
from dataclasses import replace

import pytest
from reduction.model import Presence
from support.scenes import looks
from support.scenes.looks import process, silent

from reducer.observe import drain_call, status
from reducer.observe.drain_call import ask_to_drain, has_ended, waits_for
from reducer.observe.status import NoAnswer, StatusAccess, look_at

ONE, OTHER = (1).to_bytes(16), (2).to_bytes(16)


def job(name, *presences):
    made = looks.job(name, ranks=len(presences))
    peers = zip(made.peers, presences, strict=True)
    return replace(made, peers=tuple(replace(peer, presence=presence) for peer, presence in peers))


def test_a_process_has_ended_when_another_one_answers_or_nobody_listens(monkeypatch):
    assert not has_ended(process(), ONE)
    assert has_ended(process(), OTHER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = silent(f"127.0.0.1:{server.getsockname()[1]}")
        assert not has_ended(nobody, ONE)
    assert has_ended(nobody, ONE)

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert not has_ended(nobody, ONE), "the host may be cut off"


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (process(), ""),
        (
            process(job("a", Presence.PRESENT, Presence.LEFT), job("b", Presence.PRESENT)),
            "waits for job a (1 of 2 ranks), job b (1 of 1 ranks)",
        ),
        (silent("127.0.0.1:1", "no route to host"), "does not answer: no route to host"),
    ],
)
def test_the_reason_for_waiting(look, text):
    assert waits_for(look) == text


def test_a_process_that_is_stopped_takes_no_longer_than_the_user_allows(monkeypatch):
    asked, left = [], []
    real = drain_call.call
    monkeypatch.setattr(status, "why_refused", lambda *_: asked.append("TLS"))
    monkeypatch.setattr(
        drain_call,
        "call",
        lambda method, to, left_s, access: left.append(left_s) or real(method, to, left_s, access),
    )
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert look_at(address, 0.2, StatusAccess()).reason == "Deadline Exceeded"
        answers = ask_to_drain([address], 0.2, StatusAccess())
    assert (answers.processes, answers.refusals) == ({}, {address: "Deadline Exceeded"})
    assert (asked, left) == ([], [0.0])


def test_a_refusing_reducer_is_asked_why(monkeypatch):
    async def why(*_):
        return "it requires TLS"

    monkeypatch.setattr(status, "why_refused", why)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(NoAnswer, match="it requires TLS"):
        status.fetch(address, 30.0, StatusAccess())
