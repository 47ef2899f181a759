"""What a job is made of: its collectives, its configuration, and its ranks as a reducer sees them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from reduction.model.wire_sizes import DType, ReduceOp


class Presence(enum.IntEnum):
    """How a reducer sees a rank; the numbers are those of the schema."""

    PRESENT = 1
    LOST = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Collective:
    """What all ranks must agree on for one seq."""

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
    """The members and the chunk size of an epoch; only rank 0 makes a configuration."""

    instance: bytes
    epoch: int
    chunk_bytes: int
    members: tuple[Member, ...]
    #: Whether every Push and Result has a checksum.
    checksums: bool = False
    #: Addresses that rank 0 has found since the job began, at which reducers were; all ranks dial them.
    added: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[int, ...]:
        """The members' weights, in dealing order."""
        return tuple(member.weight for member in self.members)

    def index_of(self, incarnation: bytes) -> int | None:
        """Return the position of a reducer in the dealing order; None if it is not a member."""
        for index, member in enumerate(self.members):
            if member.incarnation == incarnation:
                return index
        return None


def job_title(job: str, group: str) -> str:
    """Return the name of a job in messages and tables, with the ranks of its group unless it has all ranks."""
    return f"{job} [ranks {group}]" if group else job


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs."""

    #: Two processes have the same just if they reach each other on the loopback address. Empty if
    #: it is not known; then the process counts as one on a host of its own.
    host: bytes = b""
    #: How fast the host's link is in its slower direction, in Mbit/s. 0 if it is not known.
    link_mbit: int = 0


#: The place of a process that does not say where it is.
NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class NamedReducers:
    """The reducers that a rank found by itself, because the ranks have no store to agree on them."""

    #: Their addresses, sorted; a long list is cut.
    text: str
    #: How many they are.
    count: int

    def agrees_with(self, other: NamedReducers) -> bool:
        """Whether two ranks that both reach one reducer may have been told of the same ones.

        The addresses are not compared: a reducer may have another address for every rank, as behind a NAT.
        """
        return self.count == other.count


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as one reducer sees it."""

    rank: int
    nonce: bytes
    host: str
    presence: Presence
    #: How many streams the rank has opened here. If the number rises, the stream before has broken.
    streams: int = 1
    place: Place = NOWHERE
    #: Whether it is lost for certain: its process has ended.
    has_ended: bool = False

    def __str__(self) -> str:
        presence = "" if self.presence is Presence.PRESENT else f", {self.presence.name.lower()}"
        return f"rank {self.rank} ({self.host}{presence})"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ranks that keep the oldest chunk at a reducer from being summed, or the epoch from starting."""

    seq: int
    chunk: int
    #: Seconds since the chunk's first push, or since the epoch's first Hello.
    waited_s: float
    #: The number of ranks that have not pushed the chunk, or not said Hello.
    count: int
    #: The first of these ranks.
    missing: tuple[Peer, ...]
    #: The epoch that does not start; 0 if a chunk waits.
    epoch: int = 0

    @property
    def numbers(self) -> str:
        """The missing ranks, such as "1,3"; with "..." at the end if there are more than are listed."""
        numbers = [str(peer.rank) for peer in self.missing]
        return ",".join(numbers if len(numbers) == self.count else [*numbers, "..."])

    def __str__(self) -> str:
        names = ", ".join(map(str, self.missing))
        more = self.count - len(self.missing)
        return f"{names} and {more} more" if more > 0 else names
