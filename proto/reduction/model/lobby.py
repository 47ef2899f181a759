"""Messages by which the workers of an elastic job find each other through reducers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LobbyRequest:
    """A worker announces itself or replaces its entry."""

    job: str
    #: Identifies the worker process.
    nonce: bytes
    #: For the other workers; opaque to reducers.
    entry: bytes
    #: Whether the worker understands answers with only the changes.
    takes_news: bool = True
    #: As in `Join`.
    life_port: int = 0


@dataclass(frozen=True, slots=True)
class LobbyEntry:
    """The latest entry of a worker."""

    nonce: bytes
    entry: bytes
    #: Whether the worker's call has ended.
    is_gone: bool
    #: Whether the worker's process has ended, so that the worker is certainly gone.
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class LobbyNews:
    """A reducer's report on the workers of a job."""

    entries: tuple[LobbyEntry, ...]
    #: Whether unnamed workers are unchanged; otherwise there are no other workers.
    adds: bool = False
    #: Whether more entries of the same report follow.
    has_more: bool = False
