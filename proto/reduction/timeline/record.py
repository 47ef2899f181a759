"""One rank's record of its collectives, as a value and as a JSON file.

All times are seconds of the host's monotonic clock, which all processes of a host share and which is
never set.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from reduction import values
from reduction.errors import ConfigError
from reduction.text import load_json

#: Version of the file format.
FORMAT = 1

_T = TypeVar("_T")


@dataclass(slots=True)
class Lane:
    """One collective at one reducer."""

    first_push: float
    last_push: float
    first_result: float | None = None
    last_result: float | None = None


@dataclass(slots=True)
class Span:
    """One collective as one rank sees it. A time is None until the event has happened."""

    seq: int
    #: Such as "AVG of 262144 x float32".
    what: str
    #: Size of the rank's contribution as the layout counts it.
    nbytes: int
    #: Bytes that have not been pushed yet. Times of pushes are those of the first push, because a new
    #: epoch may request bytes again.
    unpushed: int
    #: When the user's thread issued it.
    issued: float
    #: When the sending thread took it; on a GPU the copy of the tensor to the host was in progress.
    taken: float | None = None
    #: When all results had arrived.
    whole: float | None = None
    #: When the result was in the tensor.
    done: float | None = None
    #: Lanes by the reducer's address.
    lanes: dict[str, Lane] = field(default_factory=dict)

    @property
    def first_push(self) -> float | None:
        """When its first byte left."""
        return min((lane.first_push for lane in self.lanes.values()), default=None)

    @property
    def last_push(self) -> float | None:
        """When its last byte left, so far."""
        return max((lane.last_push for lane in self.lanes.values()), default=None)


@dataclass(frozen=True, slots=True)
class Note:
    """An event in the words of the log."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """The latest collectives of one rank."""

    job: str
    rank: int
    world_size: int
    #: The host's name.
    host: str
    #: Identifies the clock. Records with the same value have times of the same clock.
    clock: str
    #: Seconds since 1970 minus the clock's seconds, when the record was made.
    unix_offset: float
    #: The error that ended the communicator, or "".
    error: str
    spans: tuple[Span, ...]
    notes: tuple[Note, ...]

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps({"format": FORMAT, **asdict(self)})


def from_json(text: str, source: str) -> Record:
    """Return the record of a file, which errors call `source`.

    Raises:
        ConfigError: `text` is not a record.
    """
    return read(text, source, "a rank", Record)


def read(text: str, source: str, whose: str, kind: type[_T]) -> _T:
    """Return the value of a file, whose format must be ours.

    Args:
        text: the file's content.
        source: name of the file in errors.
        whose: expected subject of the record, for errors.
        kind: type of the value.

    Raises:
        ConfigError: `text` is not a record, or one of another format.
    """
    try:
        document = load_json(text)
        found = document.pop("format")
        if found == FORMAT:
            return values.from_json(kind, document)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{source} is not a record of {whose}: {type(error).__name__}: {error}") from None
    # This is outside the try block because a ConfigError is a ValueError.
    raise ConfigError(f"{source} has format {found!r}, but this version reads format {FORMAT}")
