"""The events of a rank. The driver hands each to `RankCore.handle`, together with the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from reduction.errors import ReductionError
from reduction.model import Collective, ReducerFrame
from reduction.pacing import Sent


@dataclass(frozen=True, slots=True)
class Issued:
    """The next collective was issued, and its contribution can be pushed."""

    collective: Collective


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A frame that is valid by itself arrived on a link's present stream."""

    link: int
    frame: ReducerFrame


@dataclass(frozen=True, slots=True)
class StreamLost:
    """A link's present stream ended or could not be opened."""

    link: int
    error: ReductionError | None


@dataclass(frozen=True, slots=True)
class Broke:
    """Something failed in this process; the communicator cannot go on."""

    error: ReductionError


@dataclass(frozen=True, slots=True)
class FellBack:
    """Rank 0 has started a reducer for this job, after `Embed`."""

    address: str


@dataclass(frozen=True, slots=True)
class NoFallback:
    """The ranks could not agree on a reducer that rank 0 starts, after `Embed`."""

    error: ReductionError


@dataclass(frozen=True, slots=True)
class Found:
    """The addresses that DNS names, files and pools name now, after `LookUp`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """The user waits for the first epoch to start, although nothing is issued yet. `Began` or `Fail` follows."""


@dataclass(frozen=True, slots=True)
class Close:
    """The user wants to leave."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Nobody can issue any more: leave once all collectives are done."""

    #: How many were issued. Some may not have come here yet, because they are copied from a GPU.
    issued: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. It comes every few tens of milliseconds; the first one starts dialling."""

    #: What each link's data connection has sent so far, where that is known, if `RankCore.wants_sent`.
    sent: Mapping[int, Sent] = field(default_factory=dict, hash=False)


Event: TypeAlias = (
    Issued | Received | StreamLost | Broke | FellBack | NoFallback | Found | Connect | Close | Leave | Tick
)
