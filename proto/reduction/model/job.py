"""Parts of a job: its collectives, its configuration, and its ranks as a reducer sees them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from reduction.model.wire_sizes import DType, ReduceOp


class Presence(enum.IntEnum):
    """State of a rank at a reducer, with the numbers of the schema."""

    PRESENT = 1
    LOST = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Collective:
    """The properties of a collective that all ranks must agree on for one seq."""

    op: ReduceOp
    dtype: DType
    numel: int
    fingerprint: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole collective as the layout counts them."""
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
    """The members and the chunk size of an epoch. Only rank 0 creates configurations."""

    instance: bytes
    epoch: int
    chunk_bytes: int
    members: tuple[Member, ...]
    #: Whether every Push and Result has a checksum.
    checksums: bool = False
    #: Addresses of reducers that rank 0 has found since the job began. All ranks dial them.
    added: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[int, ...]:
        """The members' weights, in dealing order."""
        return tuple(member.weight for member in self.members)

    def index_of(self, incarnation: bytes) -> int | None:
        """Return the position of a reducer in the dealing order, or None if it is not a member."""
        for index, member in enumerate(self.members):
            if member.incarnation == incarnation:
                return index
        return None


def job_title(job: str, group: str) -> str:
    """Return a job's name for messages and tables, with the ranks of its group unless the group has all ranks."""
    return f"{job} [ranks {group}]" if group else job


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a process runs."""

    #: Two processes have the same value if and only if they reach each other on the loopback address.
    #: Empty if it is not known; the process then counts as alone on its host.
    host: bytes = b""
    #: Rate of the host's link in its slower direction, in Mbit/s. 0 if it is not known.
    link_mbit: int = 0


#: The place of a process that does not report one.
NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class NamedReducers:
    """The reducers that a rank found on its own, because the ranks have no store to agree on them."""

    #: Sorted addresses of the reducers; a long list is cut.
    text: str
    #: Number of reducers.
    count: int

    def agrees_with(self, other: NamedReducers) -> bool:
        """Return whether two ranks that both reach one reducer may have the same list of reducers.

        The addresses are not compared, because a reducer behind a NAT may have another address for every rank.
        """
        return self.count == other.count


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank as one reducer sees it."""

    rank: int
    nonce: bytes
    host: str
    presence: Presence
    #: Number of streams that the rank has opened here. If it rises, the previous stream has broken.
    streams: int = 1
    place: Place = NOWHERE
    #: Whether the rank's process has ended, so that the rank is certainly lost.
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
    #: The number of ranks that have not pushed the chunk or not sent Hello.
    count: int
    #: The first of these ranks.
    missing: tuple[Peer, ...]
    #: The epoch that cannot start; 0 if a chunk waits.
    epoch: int = 0

    @property
    def numbers(self) -> str:
        """The missing ranks, such as "1,3", with "..." at the end if not all are listed."""
        numbers = [str(peer.rank) for peer in self.missing]
        return ",".join(numbers if len(numbers) == self.count else [*numbers, "..."])

    def __str__(self) -> str:
        names = ", ".join(map(str, self.missing))
        more = self.count - len(self.missing)
        return f"{names} and {more} more" if more > 0 else names
