"""One state of the whole system, as tuples of small numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Payload(NamedTuple):
    """A substitute for bytes: the contributions that were added, in their order."""

    parts: tuple[tuple[int, int, int], ...]  # (rank, seq, chunk)
    nbytes: int


class Stream(NamedTuple):
    """A connection and the frames in flight on it."""

    number: int
    rank: int
    reducer: int
    up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()
    #: Whether each side still believes that the stream is open.
    rank_end: bool = True
    reducer_end: bool = True
    #: Directions in which nothing arrives from now on: both are a cut, and one alone is a half cut.
    is_up_cut: bool = False
    is_down_cut: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the stream loses anything."""
        return self.is_up_cut or self.is_down_cut


class State_(NamedTuple):
    """One state of the whole system."""

    ranks: tuple[int, ...]  # -1 for a dead one
    reducers: tuple[int, ...]  # -1 for a dead one
    streams: tuple[Stream, ...]
    #: The remaining budget of faults.
    crashes: int = 0
    restarts: int = 0
    cuts: int = 0
    half_cuts: int = 0
    deaths: int = 0
    breaks: int = 0
    findings: int = 0


def put(state: State_, changed: Stream) -> State_:
    streams = tidy([changed if stream.number == changed.number else stream for stream in state.streams])
    return State_(state.ranks, state.reducers, streams, *state[3:])


def tidy(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    return tuple([stream for stream in streams if stream.rank_end or stream.reducer_end])
