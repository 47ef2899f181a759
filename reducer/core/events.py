"""Events of a reducer. The engine passes each event to `Jobs.handle` with the time."""

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
    """The peer sent bytes that are not a valid frame, or exceeded a limit of the transport."""

    stream: int
    error: ReductionError


@dataclass(frozen=True, slots=True)
class Lost:
    """A stream ended for any reason."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The process behind a lost stream has ended, and will not return."""

    job: str
    group: str
    rank: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. The engine sends this event every few tens of milliseconds."""

    #: Totals of each stream's data connection, where they are known.
    sent: Mapping[int, Sent] = field(default_factory=dict, hash=False)
    #: Name and group of the job for which time has passed; None for all jobs.
    job: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """The operator wants the process to stop."""


ReducerEvent: TypeAlias = Received | Rejected | Lost | Ended | Tick | Drain
