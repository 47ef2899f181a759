"""Workers' lobby entries, as JSON and back. Entries from strangers must do no harm."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some
from reduction.errors import MalformedFrame
from reduction.model import LobbyEntry

from worker_plugin.elastic.membership.entries import Offer, Said, merge, said_from_entry
from worker_plugin.elastic.membership.lineage import Generation, Worker

A, B, C = Worker(0, "aa"), Worker(1, "bb"), Worker(2, "cc")
SAID = Said(A, "host", "settings", 3, "before", True, Generation(4, "id", (A, B, C), (B,)), 7)


def entry(said: Said, *, is_gone: bool = False) -> LobbyEntry:
    return LobbyEntry(said.worker.nonce.encode(), said.to_entry(), is_gone)


def test_round_trips():
    refusal = Said(B, "h", "s", refused=("aa", "cc"), refusal="why")
    offer = Said(B, "h", "s", offer=Offer("id", (A, B)), missed="other")
    former = Said(B, "h", "s", former=("dd", 3))
    assert former.ended == {Worker(1, "dd"): 3}
    ended = Said(B, "h", "s", number=2, former=("dd", 3), has_ended=True)
    assert ended.ended == {Worker(1, "dd"): 3, B: 2}
    for said in (SAID, Said(B, "h", "s"), offer, refusal, former, ended):
        assert said_from_entry(said.to_entry()) == said


@given(some.binary(max_size=200))
def test_arbitrary_bytes_are_malformed(data):
    with pytest.raises(MalformedFrame):
        said_from_entry(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": "x"},
        {"nonce": None, "count": None},
        {"proposal": 3},
        {"offer": 3},
        {"former": 3},
        {"former": ["a", None]},
        {"refused": 3},
        {"offer": {"id": "x", "workers": [[0, "a"]]}},
        {"offer": {"id": "x", "workers": [[0, "a"], [0, "a"]]}},
        {"proposal": {"number": 1, "id": "x", "workers": [[0]], "newcomers": []}},
        {"proposal": {"number": 0, "id": "x", "workers": [[0, "a"]], "newcomers": []}},
        {"proposal": {"number": 1, "id": "x", "workers": [], "newcomers": []}},
        {"proposal": {"number": 1, "id": "x", "workers": [[1, "a"], [0, "b"]], "newcomers": []}},
        {"proposal": {"number": 1, "id": "x", "workers": [[0, "a"], [0, "b"]], "newcomers": []}},
        {"proposal": {"number": 1, "id": "x", "workers": [[0, "a"]], "newcomers": [0]}},
    ],
)
def test_nonsensical_entries_are_malformed(changes):
    with pytest.raises(MalformedFrame):
        said_from_entry(json.dumps(json.loads(SAID.to_entry()) | changes).encode())


@pytest.mark.parametrize("data", [b'{"rank":1e999,"nonce":"a"}', b"[" * 16_000])
def test_entries_python_cannot_parse_are_malformed(data):
    with pytest.raises(MalformedFrame):
        said_from_entry(data)


def test_the_latest_entry_wins_and_one_reducer_that_sees_a_worker_is_enough():
    old, new = Said(A, "host", "s", count=1), Said(A, "host", "s", number=2, count=2)
    heard, faults = merge([[entry(old), entry(Said(B, "h", "s"), is_gone=True)], [entry(new, is_gone=True)]])
    assert faults == []
    assert heard["aa"] == new
    assert heard["bb"].is_gone
    heard, _ = merge([[entry(new, is_gone=True)], [entry(old, is_gone=True)]])
    assert heard["aa"].is_gone
    assert heard["aa"].number == 2
    assert merge([]) == ({}, [])


def test_only_the_nonsensical_entry_is_left_out():
    said = Said(A, "host", "s", count=1)
    heard, faults = merge([[LobbyEntry(b"x", b"nonsense", False), entry(said)]])
    assert heard == {"aa": said}
    assert len(faults) == 1
    assert "is not a worker's message" in faults[0]


def test_a_worker_that_has_gone_offers_nothing():
    said = Said(A, "host", "s", offer=Offer("id", (A, B)), missed="other")
    assert merge([[entry(said, is_gone=True)]])[0]["aa"] == Said(A, "host", "s", missed="other", is_gone=True)
