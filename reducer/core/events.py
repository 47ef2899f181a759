"""What can happen to a reducer. The engine hands each event to `Jobs.handle`, with the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from reduction.errors import ReductionError
from reduction.model import WorkerFrame
from reduction.pacing import Sent


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A valid frame arrived on a stream."""

    stream: int
    frame: WorkerFrame


@dataclass(frozen=True, slots=True)
class Rejected:
    """The peer sent bytes that are no valid frame, or broke a limit of the transport."""

    stream: int
    error: ReductionError


@dataclass(frozen=True, slots=True)
class Lost:
    """A stream ended, for whatever reason."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The process behind a stream that was lost has ended, and will not be back."""

    job: str
    group: str
    rank: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. The engine sends this event every few tens of milliseconds."""

    #: What the data connection of each stream has sent so far, where that is known.
    sent: Mapping[int, Sent] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Drain:
    """The operator wants the process to stop."""


ReducerEvent: TypeAlias = Received | Rejected | Lost | Ended | Tick | Drain
