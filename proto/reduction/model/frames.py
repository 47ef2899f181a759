"""The frames of a stream, in both directions. proto/README.md defines their order.

Frames are never changed. Push and Result are created for every chunk, and are not frozen only because that would take
four times as long (1.05 us instead of 0.23 us for six fields). All numbers are non-negative. Counts of collectives
(`held`, `minimum`) mean "all collectives with a seq below this".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from reduction.model.job import NOWHERE, Collective, Configuration, NamedReducers, Peer, Place, Waiting

#: A reducer refuses a Join of another version. Within a version, fields are only added.
PROTOCOL_VERSION = 4


# ---- worker -> reducer ----


@dataclass(frozen=True, slots=True)
class Join:
    """The first frame of a stream, which identifies the job and the rank."""

    job: str
    instance: bytes
    rank: int
    world_size: int
    nonce: bytes
    host: str
    minimum: int
    credit_bytes: int
    protocol: int = PROTOCOL_VERSION
    #: The dtype that floating-point tensors will be pushed as; 0 means their own. It is a plain
    #: number, because another version may know more dtypes.
    wire_dtype: int = 0
    #: Each contribution is the sum of this many processes. AVG divides by all of them.
    local_size: int = 1
    #: The ranks of the process group as a short text; empty for a group of all ranks.
    group: str = ""
    place: Place = NOWHERE
    #: None if the ranks have agreed on their reducers through a store.
    named: NamedReducers | None = None
    #: Identifies the run to which the ranks belong; empty for a rank that is alone.
    run: str = ""
    #: A port on the sending host that the process keeps open while it lives; 0: none.
    life_port: int = 0
    #: The line of the reducer's token file that admitted the rank. The reducer sets it; it is not on the wire.
    admitted_by: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank enters an epoch."""

    configuration: Configuration
    held: int


@dataclass(slots=True, unsafe_hash=True)
class Push:
    """One contribution. `payload` must not change until its result has arrived or the epoch is over."""

    epoch: int
    seq: int
    chunk: int
    collective: Collective
    held: int
    payload: memoryview
    #: The value of `checksum.of_push`; None if the configuration asks for no checksums.
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement, sent if no push could carry it in time."""

    held: int


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Rate at which the sender's connections carry collectives. A reducer sends the lowest rate that it knows."""

    #: Bytes of every collective per second; 0 if no limit is known.
    bytes_per_s: int

    @classmethod
    def of(cls, rate: float) -> LinkRate:
        """Return the frame for a rate, which may be infinite."""
        return cls(0 if math.isinf(rate) else int(rate))

    @property
    def rate(self) -> float:
        """The rate, infinite if no limit is known."""
        return self.bytes_per_s or math.inf


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The rank leaves normally."""

    held: int
    minimum: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The communicator has failed for the given reason. Either side may send it."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The last frame of one direction on a call. Later frames use the TCP plane. Cores never see it."""


WorkerFrame: TypeAlias = Join | Hello | Push | Ack | LinkRate | Goodbye | Abort | Moved


# ---- reducer -> worker ----


@dataclass(frozen=True, slots=True)
class Welcome:
    """The Join is accepted. A data port other than 0 offers the TCP plane to the holder of the key."""

    incarnation: bytes
    credit_bytes: int
    data_port: int = 0
    data_key: bytes = field(default=b"", repr=False)
    #: gRPC ports of more reducers on the same host.
    siblings: tuple[int, ...] = ()
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Configure:
    """Rank 0's newest configuration, relayed to the other ranks."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Start:
    """All ranks have sent Hello. Each now pushes every collective from `minimum` on."""

    epoch: int
    minimum: int


@dataclass(slots=True, unsafe_hash=True)
class Result:
    """The sum of one chunk. `payload` must not be changed, and its memory is not reused while it is referenced."""

    epoch: int
    seq: int
    chunk: int
    minimum: int
    payload: memoryview
    #: The value of `checksum.of_result`; None if the configuration asks for no checksums.
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Minimum:
    """The number of collectives that all ranks are known to hold, sent if no result could carry it in time."""

    minimum: int


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks whose state at the reducer is new to the receiver, and whether the reducer wants to stop."""

    peers: tuple[Peer, ...]
    draining: bool


ReducerFrame: TypeAlias = (
    Welcome | Moved | Configure | Start | Result | Minimum | LinkRate | Peers | Waiting | Abort
)
