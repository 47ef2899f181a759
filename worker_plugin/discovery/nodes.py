"""Which ranks are a node in hierarchical mode: every rank says what it knows, rank 0 decides for all.

local_group    what follows
a number g     ranks 0 to g-1 are the first node, the next g the second, ...; who cannot be so is a ConfigError
"auto"         what the launcher says (LOCAL_RANK, LOCAL_WORLD_SIZE), if it makes several even nodes of
               neighbouring ranks; otherwise no hierarchy, with the reason in the log
not the same   a ConfigError on all ranks, which names two of them
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reduction.errors import ConfigError

from worker_plugin.discovery.embedded import loopback_id


@dataclass(frozen=True, slots=True)
class Entry:
    """What one rank says of itself."""

    #: Its setting.
    local_group: int | str
    #: What its launcher says; None if that is nothing.
    local_rank: int | None
    local_size: int | None
    #: The same on two ranks just if they can meet on loopback and see each other's processes.
    place: str
    host: str
    pid: int
    #: Where neighbours reach it.
    address: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What rank 0 has decided; a size of 1 is flat mode."""

    size: int
    why: str = ""
    #: Whether the user should hear of it.
    is_odd: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A rank's place among the nodes."""

    index: int
    count: int
    local_rank: int
    #: Of its ranks.
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Return how many ranks each node has."""
        return len(self.entries)

    def name(self, local_rank: int) -> str:
        """Return how messages call a rank of this node."""
        return f"rank {self.index * self.size + local_rank} ({self.entries[local_rank].host})"


def own_entry(local_group: int | str, address: str, environ: Mapping[str, str] = os.environ) -> Entry:
    """Return what this process has to say."""
    local_rank, local_size = (environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_told = local_rank.isdecimal() and local_size.isdecimal()
    return Entry(
        local_group,
        int(local_rank) if is_told else None,
        int(local_size) if is_told else None,
        place_id(),
        socket.gethostname(),
        os.getpid(),
        address,
    )


def place_id() -> str:
    """Return a text for `Entry.place`."""
    try:
        return f"{loopback_id()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return loopback_id()


def decide(said: Sequence[Entry | None]) -> Verdict:
    """Return what all ranks are to do; entries are by rank, None of a rank without `local_group`.

    Raises:
        ConfigError: there is no way to do what they want.
    """
    wanted = None if said[0] is None else said[0].local_group
    for rank, entry in enumerate(said):
        theirs = None if entry is None else entry.local_group
        if theirs != wanted:
            raise ConfigError(
                f"local_group is {wanted!r} on rank 0 and {theirs!r} on rank {rank}: "
                f"it must be the same on all ranks"
            )
    entries = [entry for entry in said if entry is not None]
    if wanted is None:
        return Verdict(1)
    if wanted == "auto":
        return _decide_auto(entries)
    assert isinstance(wanted, int)
    if len(entries) % wanted:
        raise ConfigError(
            f"local_group is {wanted}, but the world size {len(entries)} is no multiple of it: every node must "
            f"have as many ranks"
        )
    if (apart := _apart(entries, wanted)) is not None:
        raise ConfigError(
            f"local_group is {wanted}, but {apart}: ranks of a node must be neighbours in number"
        )
    return Verdict(wanted)


def _decide_auto(entries: Sequence[Entry]) -> Verdict:
    silent = [rank for rank, entry in enumerate(entries) if entry.local_size is None]
    if len(silent) == len(entries):
        return Verdict(1, "no launcher says LOCAL_RANK and LOCAL_WORLD_SIZE")
    if silent:
        return Verdict(1, f"rank {silent[0]} has no LOCAL_RANK and LOCAL_WORLD_SIZE", is_odd=True)
    size = entries[0].local_size
    assert size is not None
    if size == 1:
        uneven = any(entry.local_size != 1 for entry in entries)
        return Verdict(1, "rank 0 is alone on its node", is_odd=uneven)
    if size == len(entries):
        return Verdict(1, "all ranks are on one node")
    for rank, entry in enumerate(entries):
        if entry.local_size != size:
            why = f"rank 0's node has {size} ranks, that of rank {rank} has {entry.local_size}"
            return Verdict(1, why, is_odd=True)
        if entry.local_rank != rank % size:
            why = f"rank {rank} has LOCAL_RANK {entry.local_rank} of {size}, and not {rank % size}"
            return Verdict(1, why, is_odd=True)
    if len(entries) % size:
        return Verdict(1, f"{len(entries)} ranks are no multiple of {size}", is_odd=True)
    apart = _apart(entries, size)
    return Verdict(size) if apart is None else Verdict(1, apart, is_odd=True)


def _apart(entries: Sequence[Entry], size: int) -> str | None:
    """Return which ranks of a node are on different hosts, if any are."""
    for rank, entry in enumerate(entries):
        first = rank - rank % size
        if entry.place != entries[first].place:
            return (
                f"ranks {first} ({entries[first].host}) and {rank} ({entry.host}) are on different hosts "
                f"(or in different namespaces of one)"
            )
    return None
