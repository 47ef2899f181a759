"""What the workers of an elastic job say of themselves, through reducers, before they reduce together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LobbyRequest:
    """A worker says that it is there, or says something else from now on."""

    job: str
    #: Identifies the worker process.
    nonce: bytes
    #: For the other workers; reducers do not look into it.
    entry: bytes
    #: Whether it understands answers that have only what is new.
    takes_news: bool = True
    #: As in `Join`.
    life_port: int = 0


@dataclass(frozen=True, slots=True)
class LobbyEntry:
    """What a worker has said last."""

    nonce: bytes
    entry: bytes
    #: Whether its call has ended.
    is_gone: bool
    #: Whether it has gone for certain: its process has ended.
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class LobbyNews:
    """What a reducer says of the workers of a job."""

    entries: tuple[LobbyEntry, ...]
    #: Whether workers that it does not name are as they were; otherwise there are no others.
    adds: bool = False
    #: Whether more belongs to it, and follows.
    has_more: bool = False
