"""Waiting for the reducers of a cluster."""

import socket

import pytest
from reduction.errors import ReducerUnavailable

from reducer.launch import waiting_for_reducers


def listener():
    return socket.create_server(("127.0.0.1", 0))


def nobody():
    """Return a port on which nothing listens while the socket is open."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def test_many_reducers_take_turns(monkeypatch):
    monkeypatch.setattr(waiting_for_reducers, "DIALS_MAX", 1)
    with listener() as one:
        addresses = [f"127.0.0.{number}:{one.getsockname()[1]}" for number in (1, 2, 3)]
        with pytest.raises(ReducerUnavailable, match=f"2 of 3 reducers .*{addresses[1]}"):
            waiting_for_reducers.wait_for_reducers(addresses, 0.0, lambda _: None)


def test_missing_reducers_are_named_until_they_appear(monkeypatch):
    monkeypatch.setattr(waiting_for_reducers, "PAUSE_S", 0.01)
    with nobody() as late, listener() as there:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (there, late)]
        said = []

        def say(text):
            said.append(text)
            if len(said) == 1:
                late.listen()

        waiting_for_reducers.wait_for_reducers(addresses, 60.0, say)
    assert said == [
        f"waiting for 1 of 2 reducers: {addresses[1]}; giving up in 60 s",
        "all 2 reducers can be reached",
    ]


def test_unreachable_reducers_are_named(monkeypatch):
    monkeypatch.setattr(waiting_for_reducers, "PAUSE_S", 0.01)
    with nobody() as never:
        port = never.getsockname()[1]
        addresses = [f"127.0.0.{number}:{port}" for number in range(1, 6)] + ["no-such-host.invalid:1"]
        with pytest.raises(ReducerUnavailable) as caught:
            waiting_for_reducers.wait_for_reducers(addresses, 0.05, lambda _: None)
    text = str(caught.value)
    assert text.startswith(
        f"6 of 6 reducers could not be reached within 0.05 s: {addresses[0]} (connection refused), "
    )
    assert text.endswith(" and 2 more")


def test_a_name_that_does_not_resolve():
    with pytest.raises(ReducerUnavailable, match=r"no-such-host\.invalid:1 \(.*[Nn]ame"):
        waiting_for_reducers.wait_for_reducers(["no-such-host.invalid:1"], 0.0, lambda _: None)
