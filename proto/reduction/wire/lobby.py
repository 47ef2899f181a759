"""Encode and decode messages of the Lobby call."""

from __future__ import annotations

from reduction import model
from reduction.limits import JOB_NAME_BYTES_MAX, LOBBY_ENTRIES_MAX, LOBBY_ENTRY_BYTES_MAX, PORT_MAX
from reduction.v1 import reduction_pb2 as pb
from reduction.wire.fields import parse, require, require_id, require_printable


def lobby_request_to_wire(request: model.LobbyRequest) -> bytes:
    """Encode the request of a worker."""
    return pb.LobbyRequest(
        job=request.job,
        nonce=request.nonce,
        entry=request.entry,
        takes_news=request.takes_news,
        life_port=request.life_port,
    ).SerializeToString()


def lobby_request_from_wire(data: bytes) -> model.LobbyRequest:
    """Decode the request of a worker.

    Raises:
        MalformedFrame: not a LobbyRequest, or a field outside its limits.
    """
    request = parse(pb.LobbyRequest, data)
    require("length of LobbyRequest.job", len(request.job.encode()), 1, JOB_NAME_BYTES_MAX)
    require_printable("LobbyRequest.job", request.job)
    require_id("LobbyRequest.nonce", request.nonce)
    require("length of LobbyRequest.entry", len(request.entry), 1, LOBBY_ENTRY_BYTES_MAX)
    require("LobbyRequest.life_port", request.life_port, 0, PORT_MAX)
    return model.LobbyRequest(
        request.job, request.nonce, request.entry, request.takes_news, request.life_port
    )


def lobby_response_to_wire(news: model.LobbyNews) -> bytes:
    """Encode a reducer's report on the workers of a job."""
    return pb.LobbyResponse(
        entries=[
            pb.LobbyEntry(nonce=one.nonce, entry=one.entry, gone=one.is_gone, ended=one.has_ended)
            for one in news.entries
        ],
        adds=news.adds,
        has_more=news.has_more,
    ).SerializeToString()


def lobby_response_from_wire(data: bytes) -> model.LobbyNews:
    """Decode a reducer's report on the workers of a job.

    Raises:
        MalformedFrame: not a LobbyResponse, or a field outside its limits.
    """
    response = parse(pb.LobbyResponse, data)
    require("number of LobbyResponse.entries", len(response.entries), 0, LOBBY_ENTRIES_MAX)
    for one in response.entries:
        require_id("LobbyEntry.nonce", one.nonce)
        require("length of LobbyEntry.entry", len(one.entry), 1, LOBBY_ENTRY_BYTES_MAX)
    entries = tuple(model.LobbyEntry(one.nonce, one.entry, one.gone, one.ended) for one in response.entries)
    return model.LobbyNews(entries, response.adds, response.has_more)
