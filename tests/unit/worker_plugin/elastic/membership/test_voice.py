"""Lobby entries that a worker receives, from others that may be impostors."""

import itertools
import json
import logging

import pytest
from reduction.model import LobbyEntry

from worker_plugin.config import PluginConfig
from worker_plugin.elastic.membership import voice
from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Worker
from worker_plugin.elastic.membership.voice import Voice

OWN = Said(Worker(0, "00" * 16), "here", "settings")


class Lobby:
    """Stands in for the calls to the reducers: another worker's entry differs each time."""

    entries = ()

    def __init__(self, *_):
        pass

    def heard(self):
        return [(LobbyEntry(b"x" * 16, next(self.entries), False),)]


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(voice, "LobbyClient", Lobby)
    own = Voice(PluginConfig(reducers=("127.0.0.1:1",), job="j"), OWN, lambda: None)

    def others(entries):
        monkeypatch.setattr(Lobby, "entries", entries)
        return own.others()

    return others


def test_a_worker_that_sends_varying_nonsense_is_logged_in_a_few_lines(heard, caplog):
    nonsense = (b"nonsense %d" % number for number in itertools.count())
    with caplog.at_level(logging.INFO):
        for _ in range(10_000):
            assert heard(nonsense) == {}
    assert 1 <= len(caplog.records) <= 20


def test_host_names_are_escaped(heard):
    fields = {"rank": 1, "nonce": "11" * 16, "host": "h\x1b[2J\u202e", "settings": "s", "number": 0}
    said = json.dumps(fields | {"generation": "", "waiting": False, "count": 1}).encode()
    assert heard(iter([said]))["11" * 16].host == r"h\x1b[2J\u202e"


def test_it_knows_whether_a_reducer_is_heard(monkeypatch):
    monkeypatch.setattr(voice, "LobbyClient", Lobby)
    own = Voice(PluginConfig(reducers=("127.0.0.1:1",), job="j"), OWN, lambda: None)
    for answers in ((), ((),)):
        monkeypatch.setattr(Lobby, "heard", lambda _, answers=answers: answers)
        assert own.hears == bool(answers)
