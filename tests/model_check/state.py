"""One state of everything, as tuples of small numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Payload(NamedTuple):
    """Stands for bytes: which contributions were added, in which order."""

    parts: tuple[tuple[int, int, int], ...]  # (rank, seq, chunk)
    nbytes: int


class Stream(NamedTuple):
    """A connection and what is under way on it."""

    number: int
    rank: int
    reducer: int
    up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()
    #: Whether each side still takes the stream for one that stands.
    rank_end: bool = True
    reducer_end: bool = True
    #: Directions in which nothing arrives any more: both are a cut, one alone is half a cut.
    is_up_cut: bool = False
    is_down_cut: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether anything gets lost on it."""
        return self.is_up_cut or self.is_down_cut


class State_(NamedTuple):
    """One state of everything."""

    ranks: tuple[int, ...]  # -1 is a dead one
    reducers: tuple[int, ...]  # -1 is a dead one
    streams: tuple[Stream, ...]
    #: What may still happen.
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
