"""What the engine has to do, in this order. It makes no decisions of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reduction.errors import ReductionError
from reduction.model import Collective, ReducerFrame


class SlotKey(NamedTuple):
    """Names one accumulation; `job` is a number that is never used twice in a process."""

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
    """End a stream after what was sent; `error` goes into the log, None is a clean end."""

    stream: int
    error: ReductionError | None


@dataclass(slots=True, unsafe_hash=True)
class Fold:
    """Add payloads to a slot's accumulator, in this order; the first fold of a slot makes it."""

    slot: SlotKey
    collective: Collective
    payloads: tuple[memoryview, ...]
    #: Bytes of the chunk as the layout counts them.
    layout_bytes: int


@dataclass(slots=True, unsafe_hash=True)
class Publish:
    """Finish a slot (scale, round once), send the Result to the streams, free the accumulator."""

    slot: SlotKey
    collective: Collective
    #: What AVG divides by.
    divisor: int
    epoch: int
    minimum: int
    streams: tuple[int, ...]
    #: Whether the Result has a checksum.
    has_checksum: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Free a slot's accumulator without a result."""

    slot: SlotKey


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the operator."""

    text: str


Action: TypeAlias = Send | Close | Fold | Publish | Discard | Warn
