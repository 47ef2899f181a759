"""Actions for the driver, which performs them in list order and makes no decisions of its own."""

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
    """Send the contribution's bytes [start, stop), as counted by the layout, as a Push."""

    link: int
    epoch: int
    seq: int
    chunk: int
    collective: Collective
    held: int
    start: int
    stop: int
    #: Whether this rank still needs the chunk's result. A new epoch sends results again that have already arrived.
    is_awaited: bool


@dataclass(slots=True, unsafe_hash=True)
class Store:
    """Ensure that the payload is in the result memory of `seq`, as its bytes [start, stop).

    A stream may have received it there already, in which case there is nothing to do.
    """

    seq: int
    start: int
    stop: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Divert:
    """Keep further data on `link` out of the memory of results, because its epoch has ended.

    The new epoch brings the same bytes from elsewhere. Data that still arrives here may be damaged, and its checksum
    would not be verified.
    """

    link: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Complete the future of `seq`, whose result is whole."""

    seq: int


@dataclass(frozen=True, slots=True)
class Release:
    """Free the contribution of `seq`, which no reducer will need again."""

    seq: int


@dataclass(frozen=True, slots=True)
class Shut:
    """End a link's stream once everything queued has been sent."""

    link: int


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limit a link's data connection to this many bytes per second."""

    link: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the communicator: every undelivered future, and every later collective, gets this error."""

    error: ReductionError
    #: Whether the communicator also ends here. Otherwise it continues until the others have been told; `Closed`
    #: follows.
    is_over: bool = True


@dataclass(frozen=True, slots=True)
class Embed:
    """No reducer is left: agree with the other ranks on one started by rank 0. `FellBack` or `NoFallback` follows."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look up the reducers again. `Found` follows, or nothing."""

    #: Whether to query all sources. Otherwise a reducer is gone whose address may have changed, and only DNS names are
    #: looked up.
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """The first epoch has started: all ranks have joined at all of its reducers."""

    #: Addresses of the reducers.
    reducers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more will follow: stop once everything queued has been sent."""


#: Levels of the logging module, which the core does not import.
INFO, WARNING = 20, 30


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log at INFO or WARNING."""

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
