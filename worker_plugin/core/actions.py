"""What the driver has to do, in the order of the list. It makes no decisions of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from reduction.errors import ReductionError
from reduction.model import Collective, Join, WorkerFrame


@dataclass(frozen=True, slots=True)
class Open:
    """Open a new stream for a link and send Join on it."""

    link: int
    address: str
    join: Join


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame without payload."""

    link: int
    frame: WorkerFrame


@dataclass(slots=True, unsafe_hash=True)
class PushChunk:
    """Send the contribution's bytes [start, stop), as the layout counts them, as a Push."""

    link: int
    epoch: int
    seq: int
    chunk: int
    collective: Collective
    held: int
    start: int
    stop: int
    #: Whether this rank still needs the chunk's result. In a new epoch results come again that are
    #: here already.
    is_awaited: bool


@dataclass(slots=True, unsafe_hash=True)
class Store:
    """See to it that the payload is in the result memory of `seq`, as its bytes [start, stop).

    A stream may have received it there; then there is nothing to do.
    """

    seq: int
    start: int
    stop: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Divert:
    """Receive what still comes on `link` elsewhere than in the memory of results: its epoch is over.

    The new epoch brings the same bytes from somewhere else. What still comes here may be damaged,
    and nobody would look at its checksum.
    """

    link: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """The result of `seq` is whole: complete its future."""

    seq: int


@dataclass(frozen=True, slots=True)
class Release:
    """No reducer will need the contribution of `seq` again: free it."""

    seq: int


@dataclass(frozen=True, slots=True)
class Shut:
    """End a link's stream after what was sent."""

    link: int


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limit a link's data connection to this many bytes per second."""

    link: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The communicator has failed: every future that is not delivered, and every later collective, gets this error."""

    error: ReductionError
    #: Whether it also ends with that. Otherwise it goes on until the others have heard; `Closed`
    #: follows.
    is_over: bool = True


@dataclass(frozen=True, slots=True)
class Embed:
    """No reducer is left: agree with the other ranks on one that rank 0 starts. `FellBack` or `NoFallback` follows."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask again which reducers there are. `Found` follows, or nothing."""

    #: Whether to ask all sources. Otherwise a reducer is gone whose address may have changed, and only DNS
    #: names are looked up.
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """The first epoch has started: all ranks are there, at all of its reducers."""

    #: Addresses of the reducers.
    reducers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more will come: stop after what was sent."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log; `level` is one of the logging module."""

    level: int
    text: str


Action: TypeAlias = (
    Open
    | Send
    | PushChunk
    | Store
    | Divert
    | Deliver
    | Release
    | Shut
    | Throttle
    | Fail
    | Embed
    | LookUp
    | Began
    | Closed
    | Log
)
