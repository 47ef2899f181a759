"""The frames of a stream, in both directions. proto/README.md says in which order they come.

Nobody changes a frame. Push and Result are made for every chunk, and are not frozen only because that takes four times
as long (1.05 against 0.23 us for six fields). All numbers are non-negative. Counts of collectives (`held`, `minimum`)
mean "all collectives with a seq below this".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from reduction.model.job import Collective, Configuration, Peer

#: A reducer refuses a Join of another version. Within a version fields are only added.
PROTOCOL_VERSION = 2


# ---- worker -> reducer ----


@dataclass(frozen=True, slots=True)
class Join:
    """First frame of a stream: who is calling."""

    job: str
    instance: bytes
    rank: int
    world_size: int
    nonce: bytes
    host: str
    minimum: int
    credit_bytes: int
    protocol: int = PROTOCOL_VERSION
    #: A number, because another version may know more dtypes; 0 is none.
    wire_dtype: int = 0
    #: Of how many processes each contribution is the sum: AVG divides by all of them.
    local_size: int = 1
    #: Tells the process groups of one job apart; "" for the whole job.
    group: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank enters an epoch."""

    configuration: Configuration
    held: int


@dataclass(slots=True, unsafe_hash=True)
class Push:
    """One contribution. `payload` must not change until its result is there or the epoch is over."""

    epoch: int
    seq: int
    chunk: int
    collective: Collective
    held: int
    payload: memoryview
    #: `checksum.of_push`, None if the configuration asks for none.
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement that found no push to ride on."""

    held: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The rank leaves in good order."""

    held: int
    minimum: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The communicator has failed; both directions."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The last frame of one direction on a call; the rest comes over the TCP plane. No core ever sees it."""


WorkerFrame: TypeAlias = Join | Hello | Push | Ack | Goodbye | Abort | Moved


# ---- reducer -> worker ----


@dataclass(frozen=True, slots=True)
class Welcome:
    """The Join is accepted; a data port other than 0 offers the TCP plane to whoever has the key."""

    incarnation: bytes
    credit_bytes: int
    data_port: int = 0
    data_key: bytes = field(default=b"", repr=False)
    #: gRPC ports of more reducers on the same host.
    siblings: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Configure:
    """Rank 0's newest configuration, relayed to the other ranks."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Start:
    """All ranks said Hello: push everything from `minimum` on."""

    epoch: int
    minimum: int


@dataclass(slots=True, unsafe_hash=True)
class Result:
    """The sum of one chunk. Nobody may change `payload`; whoever keeps it keeps its memory from being reused."""

    epoch: int
    seq: int
    chunk: int
    minimum: int
    payload: memoryview
    #: `checksum.of_result`, None if the configuration asks for none.
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Minimum:
    """What every rank holds, when no result could carry it."""

    minimum: int


@dataclass(frozen=True, slots=True)
class Peers:
    """How the reducer sees ranks of which the receiver does not know it yet; and whether it wants to stop."""

    peers: tuple[Peer, ...]
    draining: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who keeps the oldest chunk at a reducer from being summed, or the epoch from starting."""

    seq: int
    chunk: int
    #: Since the chunk's first push, or the epoch's first Hello.
    waited_s: float
    #: Ranks that have not pushed it, or not said Hello.
    count: int
    #: The first of them.
    missing: tuple[Peer, ...]
    #: The epoch that does not start; 0 if it is a chunk that waits.
    epoch: int = 0

    def __str__(self) -> str:
        names = ", ".join(map(str, self.missing))
        more = self.count - len(self.missing)
        return f"{names} and {more} more" if more > 0 else names


ReducerFrame: TypeAlias = Welcome | Moved | Configure | Start | Result | Minimum | Peers | Waiting | Abort
