"""Actions that the core orders and the engine carries out in order. The engine makes no decisions itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from reduction.errors import ReductionError
from reduction.model import Collective, ReducerFrame


class SlotKey(NamedTuple):
    """Key of one accumulation. `job` is a number that is never reused in a process."""

    job: int
    seq: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame on a stream."""

    stream: int
    frame: ReducerFrame


@dataclass(frozen=True, slots=True)
class Close:
    """End a stream after the frames sent so far. `error` is for the log, and None is a clean end."""

    stream: int
    error: ReductionError | None


@dataclass(slots=True, unsafe_hash=True)
class Fold:
    """Add payloads to a slot's accumulator in this order. The first Fold of a slot creates it."""

    slot: SlotKey
    collective: Collective
    payloads: tuple[memoryview, ...]
    #: Bytes of the chunk as the layout counts them.
    layout_bytes: int


@dataclass(slots=True, unsafe_hash=True)
class Publish:
    """Scale and round a slot's sum once, send the Result to the streams, and free the accumulator."""

    slot: SlotKey
    collective: Collective
    #: AVG divides the sum by this.
    divisor: int
    epoch: int
    minimum: int
    streams: tuple[int, ...]
    #: Whether the Result has a checksum.
    has_checksum: bool = False
    #: For observers: the last rank to push the chunk, and the time of the first push.
    last_rank: int = field(default=0, compare=False)
    opened_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Discard:
    """Free a slot's accumulator without a result."""

    slot: SlotKey


@dataclass(frozen=True, slots=True)
class Warn:
    """Write a warning for the operator into the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limit a stream's data connection to this many bytes per second."""

    stream: int
    bytes_per_s: int


Action: TypeAlias = Send | Close | Fold | Publish | Discard | Warn | Throttle
