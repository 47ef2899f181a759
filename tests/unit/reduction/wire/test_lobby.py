"""The messages of the lobby, as bytes and back."""

import pytest
from reduction import wire
from reduction.errors import MalformedFrame
from reduction.limits import LOBBY_ENTRIES_MAX, LOBBY_ENTRY_BYTES_MAX, LOBBY_REQUEST_BYTES_MAX
from reduction.model import LobbyEntry, LobbyNews, LobbyRequest
from reduction.v1 import reduction_pb2 as pb

NONCE = b"n" * 16


def test_round_trips():
    for takes_news in (True, False):
        request = LobbyRequest("job", NONCE, b"entry", takes_news)
        assert wire.lobby_request_from_wire(wire.lobby_request_to_wire(request)) == request
    entries = (LobbyEntry(NONCE, b"entry", False), LobbyEntry(b"o" * 16, b"x", True))
    for news in (
        LobbyNews(entries),
        LobbyNews(entries, adds=True),
        LobbyNews(entries, adds=True, has_more=True),
    ):
        assert wire.lobby_response_from_wire(wire.lobby_response_to_wire(news)) == news
    assert wire.lobby_response_from_wire(b"") == LobbyNews(())


def test_the_largest_request_is_within_its_limit():
    largest = LobbyRequest("j" * 200, NONCE, b"x" * LOBBY_ENTRY_BYTES_MAX)
    assert len(wire.lobby_request_to_wire(largest)) <= LOBBY_REQUEST_BYTES_MAX


@pytest.mark.parametrize(
    "request_",
    [
        pb.LobbyRequest(nonce=NONCE, entry=b"x"),
        pb.LobbyRequest(job="j" * 201, nonce=NONCE, entry=b"x"),
        pb.LobbyRequest(job="line\nbreak", nonce=NONCE, entry=b"x"),
        pb.LobbyRequest(job="job", nonce=b"short", entry=b"x"),
        pb.LobbyRequest(job="job", nonce=NONCE),
        pb.LobbyRequest(job="job", nonce=NONCE, entry=b"x" * (LOBBY_ENTRY_BYTES_MAX + 1)),
    ],
)
def test_requests_outside_of_their_limits(request_):
    with pytest.raises(MalformedFrame):
        wire.lobby_request_from_wire(request_.SerializeToString())


@pytest.mark.parametrize(
    "entries",
    [
        [pb.LobbyEntry(nonce=b"short", entry=b"x")],
        [pb.LobbyEntry(nonce=NONCE)],
        [pb.LobbyEntry(nonce=NONCE, entry=b"x")] * (LOBBY_ENTRIES_MAX + 1),
    ],
)
def test_responses_outside_of_their_limits(entries):
    with pytest.raises(MalformedFrame):
        wire.lobby_response_from_wire(pb.LobbyResponse(entries=entries).SerializeToString())


@pytest.mark.parametrize("parse", [wire.lobby_request_from_wire, wire.lobby_response_from_wire])
def test_bytes_that_are_no_message(parse):
    with pytest.raises(MalformedFrame):
        parse(b"\xff\xff\xff")
