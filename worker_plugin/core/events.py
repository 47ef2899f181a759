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
    """A valid frame arrived on a link's present stream."""

    link: int
    frame: ReducerFrame


@dataclass(frozen=True, slots=True)
class StreamLost:
    """A link's present stream ended or could not be opened."""

    link: int
    error: ReductionError | None


@dataclass(frozen=True, slots=True)
class Broke:
    """Something failed in this process; the communicator cannot continue."""

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
    """The addresses that DNS names, files and pools currently give, after `LookUp`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """The user waits for the first epoch to start although nothing has been issued yet. `Began` or `Fail` follows."""


@dataclass(frozen=True, slots=True)
class Close:
    """The user wants to leave."""


@dataclass(frozen=True, slots=True)
class Leave:
    """No more can be issued: leave once all collectives are done."""

    #: Number of collectives issued. Some may not have arrived here yet, because they are being copied from a GPU.
    issued: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Arrives every few tens of milliseconds; the first one starts dialling."""

    #: Data sent so far by each link's data connection, where known, if `RankCore.wants_sent`.
    sent: Mapping[int, Sent] = field(default_factory=dict, hash=False)


Event: TypeAlias = (
    Issued | Received | StreamLost | Broke | FellBack | NoFallback | Found | Connect | Close | Leave | Tick
)
