"""The values of the protocol: identities, dtypes, frames. proto/README.md says what they mean.

Frames are what cores, engine and transports exchange; `reduction.wire` turns them into bytes and back, and is the
only file that knows the schema. Nobody changes a value; those made for every chunk are not frozen only because
that takes four times as long (1.05 against 0.23 us for six fields). All numbers are non-negative; counts of
collectives (`held`, `minimum`) mean "all seq below this".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

PROTOCOL_VERSION = 2


class DType(enum.IntEnum):
    """Element types; the numbers are those of the schema."""

    FLOAT32 = 1
    FLOAT64 = 2
    BFLOAT16 = 3
    FLOAT16 = 4
    INT32 = 5
    INT64 = 6
    UINT8 = 7
    INT8 = 8
    BOOL = 9
    INT8_BLOCK = 10
    FP8_BLOCK = 11
    TOPK = 12

    @property
    def itemsize(self) -> int:
        """Bytes per element; of compressed formats what the layout counts (`formats.py`)."""
        return _ITEMSIZE[self]

    def allows(self, op: ReduceOp) -> bool:
        """Whether contributions can be reduced in this way."""
        if op is ReduceOp.SUM:
            return True
        if op is ReduceOp.AVG:
            return self not in _INTEGERS
        return self not in (DType.INT8_BLOCK, DType.FP8_BLOCK, DType.TOPK)


_ITEMSIZE = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.BFLOAT16: 2,
    DType.FLOAT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.UINT8: 1,
    DType.INT8: 1,
    DType.BOOL: 1,
    DType.INT8_BLOCK: 2,
    DType.FP8_BLOCK: 2,
    DType.TOPK: 2,
}
_INTEGERS = (DType.INT32, DType.INT64, DType.UINT8, DType.INT8, DType.BOOL)


class ReduceOp(enum.IntEnum):
    """What a reducer does with the contributions; the numbers are those of the schema."""

    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Presence(enum.IntEnum):
    """How a reducer sees a rank; the numbers are those of the schema."""

    PRESENT = 1
    LOST = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Collective:
    """What all ranks must agree on, per seq."""

    op: ReduceOp
    dtype: DType
    numel: int
    fingerprint: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole collective, as the layout counts them."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.op.name} of {self.numel} x {self.dtype.name.lower()} (layout {self.fingerprint:016x})"


@dataclass(frozen=True, slots=True)
class Member:
    """A reducer in a configuration."""

    address: str
    incarnation: bytes
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who takes part in an epoch and on which grid; only rank 0 makes one."""

    instance: bytes
    epoch: int
    chunk_bytes: int
    members: tuple[Member, ...]
    #: Whether every Push and Result has a checksum.
    checksums: bool = False

    @property
    def weights(self) -> tuple[int, ...]:
        """The members' weights, in dealing order."""
        return tuple(member.weight for member in self.members)

    def index_of(self, incarnation: bytes) -> int | None:
        """Return the place of a reducer in the dealing order, or None."""
        for index, member in enumerate(self.members):
            if member.incarnation == incarnation:
                return index
        return None


def job_title(job: str, group: str) -> str:
    """Return what messages and tables call a job: its name, and the ranks of its process group if that is not all."""
    return f"{job} [ranks {group}]" if group else job


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
class Peer:
    """A rank as one reducer sees it."""

    rank: int
    nonce: bytes
    host: str
    presence: Presence
    #: How many it has had here: if there is a new one, the one before has broken.
    streams: int = 1

    def __str__(self) -> str:
        lost = "" if self.presence is Presence.PRESENT else f", {self.presence.name.lower()}"
        return f"rank {self.rank} ({self.host}{lost})"


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


# ---- status ----


@dataclass(frozen=True, slots=True)
class LastRank:
    """How often chunks waited for a rank, and how long in all."""

    rank: int
    chunks: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """Percentiles of the time from a chunk's first push to its last, in seconds."""

    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job as a reducer sees it."""

    job: str
    world_size: int
    peers: tuple[Peer, ...]
    epoch: int
    started: bool
    minimum: int
    open_slots: int
    reserved_bytes: int
    received_bytes: int
    sent_bytes: int
    chunk_bytes: int
    credit_bytes: int
    #: The most that a rank has pushed and not got back, at this moment.
    under_way_bytes: int
    #: Ranks that were the last to push a chunk, ascending.
    last: tuple[LastRank, ...] = ()
    waits: WaitTimes = WaitTimes()
    #: As in `Join`.
    group: str = ""

    @property
    def title(self) -> str:
        """What to call it; no other job of the reducer is called so."""
        return job_title(self.job, self.group)


@dataclass(frozen=True, slots=True)
class ReducerStatus:
    """One reducer process."""

    version: str
    incarnation: bytes
    uptime_seconds: float
    draining: bool
    memory_reserved_bytes: int
    memory_limit_bytes: int
    jobs: tuple[JobStatus, ...]
    #: gRPC ports of the other processes of the same `reducer serve`.
    siblings: tuple[int, ...] = ()
