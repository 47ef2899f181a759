"""Which ranks form a node in hierarchical mode: all ranks report where they run, and rank 0 plans for all.

local_group    nodes
a number g     ranks 0 to g-1 are the first node, the next g ranks the second, and so on. ConfigError if
               these ranks are on different hosts.
"auto"         as given by the launcher (LOCAL_RANK, LOCAL_WORLD_SIZE), if that results in several nodes of
               equal size, each of consecutive ranks. Otherwise none, with the reason in the log.
ranks differ   ConfigError on all ranks, naming two of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reduction.errors import ConfigError
from reduction.process.place import loopback_id


@dataclass(frozen=True, slots=True)
class Locality:
    """Where one rank runs, from its own point of view."""

    #: This rank's setting.
    local_group: int | str
    #: The launcher's LOCAL_RANK and LOCAL_WORLD_SIZE; None if it has not set both.
    local_rank: int | None
    local_size: int | None
    #: Two ranks have the same value exactly if they can reach each other on loopback and see each other's processes.
    namespace_id: str
    host: str
    pid: int
    #: The address at which other ranks of its node reach it (hierarchy/neighbours.py).
    address: str


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Rank 0's decision about nodes."""

    #: Number of ranks per node; 1 means flat mode, without a hierarchy.
    size: int
    #: Why there is no hierarchy although "auto" was requested.
    reason: str = ""
    #: Whether the user probably expected a hierarchy, and should be warned.
    is_unexpected: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as seen by one of its ranks."""

    #: This node's number, and the number of nodes.
    index: int
    count: int
    local_rank: int
    #: All ranks of this node.
    members: tuple[Locality, ...]

    @property
    def size(self) -> int:
        """Number of ranks per node."""
        return len(self.members)

    def name(self, local_rank: int) -> str:
        """Return the name of a rank of this node in messages."""
        return f"rank {self.index * self.size + local_rank} ({self.members[local_rank].host})"


def own_locality(local_group: int | str, address: str, environ: Mapping[str, str] = os.environ) -> Locality:
    """Return where this process runs."""
    local_rank, local_size = (environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_set = local_rank.isdecimal() and local_size.isdecimal()
    return Locality(
        local_group,
        int(local_rank) if is_set else None,
        int(local_size) if is_set else None,
        namespace_id(),
        socket.gethostname(),
        os.getpid(),
        address,
    )


def namespace_id() -> str:
    """Return the text of `Locality.namespace_id`."""
    try:
        return f"{loopback_id()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return loopback_id()


def plan_nodes(localities: Sequence[Locality | None]) -> NodePlan:
    """Return the plan for all ranks. Localities are by rank, None for a rank without `local_group`.

    Raises:
        ConfigError: the ranks have different settings, or cannot form nodes of the size they have set.
    """
    wanted = None if localities[0] is None else localities[0].local_group
    for rank, locality in enumerate(localities):
        theirs = None if locality is None else locality.local_group
        if theirs != wanted:
            raise ConfigError(
                f"local_group is {wanted!r} on rank 0 and {theirs!r} on rank {rank}: "
                f"it must be the same on all ranks"
            )
    ranks = [locality for locality in localities if locality is not None]
    if wanted is None:
        return NodePlan(1)
    if wanted == "auto":
        return _plan_auto(ranks)
    assert isinstance(wanted, int)
    if len(ranks) % wanted:
        raise ConfigError(
            f"local_group is {wanted}, but the world size {len(ranks)} is not a multiple of it: every node must "
            f"have that many ranks"
        )
    if (scattered := _scattered(ranks, wanted)) is not None:
        raise ConfigError(
            f"local_group is {wanted}, but {scattered}: the ranks of a node must have consecutive numbers"
        )
    return NodePlan(wanted)


def _plan_auto(ranks: Sequence[Locality]) -> NodePlan:
    silent = [rank for rank, locality in enumerate(ranks) if locality.local_size is None]
    if len(silent) == len(ranks):
        return NodePlan(1, "no launcher sets LOCAL_RANK and LOCAL_WORLD_SIZE")
    if silent:
        return NodePlan(1, f"rank {silent[0]} has no LOCAL_RANK and LOCAL_WORLD_SIZE", is_unexpected=True)
    size = ranks[0].local_size
    assert size is not None
    if size == 1:
        uneven = any(locality.local_size != 1 for locality in ranks)
        return NodePlan(1, "rank 0 is alone on its node", is_unexpected=uneven)
    if size == len(ranks):
        return NodePlan(1, "all ranks are on one node")
    for rank, locality in enumerate(ranks):
        if locality.local_size != size:
            reason = f"rank 0's node has {size} ranks, but that of rank {rank} has {locality.local_size}"
            return NodePlan(1, reason, is_unexpected=True)
        if locality.local_rank != rank % size:
            reason = f"rank {rank} has LOCAL_RANK {locality.local_rank} of {size} instead of {rank % size}"
            return NodePlan(1, reason, is_unexpected=True)
    if len(ranks) % size:
        return NodePlan(1, f"{len(ranks)} ranks are not a multiple of {size}", is_unexpected=True)
    scattered = _scattered(ranks, size)
    return NodePlan(size) if scattered is None else NodePlan(1, scattered, is_unexpected=True)


def _scattered(ranks: Sequence[Locality], size: int) -> str | None:
    """Return which ranks of a node are on different hosts, or None."""
    for rank, locality in enumerate(ranks):
        first = rank - rank % size
        if locality.namespace_id != ranks[first].namespace_id:
            return (
                f"ranks {first} ({ranks[first].host}) and {rank} ({locality.host}) are on different hosts "
                f"(or in different namespaces of one)"
            )
    return None
