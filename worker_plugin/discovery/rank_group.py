"""Which ranks reduce together: those of a process group, of a store, or those that the settings number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from reduction.errors import ConfigError
from reduction.layout import fingerprint
from torch.distributed.distributed_c10d import (
    ProcessGroup,
    Store,
    _get_default_group,
    _get_process_group_store,
)

#: A longer text of ranks is truncated to this length and ends with a hash. Well below `limits.GROUP_BYTES_MAX`.
LABEL_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A group of ranks that reduce together, as seen by one of them."""

    rank: int
    size: int
    #: The members' ranks in torch.distributed's default group, in the order of this group. None if
    #: the settings number the ranks.
    global_ranks: tuple[int, ...] | None = None
    #: Distinguishes the groups of one job. "" for the default group, and if the settings number the ranks.
    label: str = ""
    #: The store of the group. None if there is no process group of exactly these ranks, and no store was given.
    store: Store | None = None

    @property
    def global_rank(self) -> int:
        """This rank's number in the default group, or in this one if no default group is known."""
        return self.rank if self.global_ranks is None else self.global_ranks[self.rank]

    def __str__(self) -> str:
        if self.global_ranks is None:
            return f"rank {self.rank} of {self.size}"
        return f"ranks {ranks_text(self.global_ranks)}"


def group_of(process_group: ProcessGroup) -> RankGroup:
    """Return a process group as seen by this rank.

    Raises:
        ConfigError: this rank is not a member, or the group is gone.
    """
    try:
        ranks = tuple(dist.get_process_group_ranks(process_group))
        store: Store = _get_process_group_store(process_group)
    except KeyError:
        raise ConfigError(
            "process_group is no longer known to torch.distributed: it was destroyed, or belongs to another process"
        ) from None
    is_default = ranks == tuple(dist.get_process_group_ranks(None))
    return RankGroup(process_group.rank(), len(ranks), ranks, "" if is_default else ranks_text(ranks), store)


def find_group(
    rank: int | None, size: int | None, process_group: ProcessGroup | None, store: Store | None = None
) -> RankGroup:
    """Return the group denoted by the settings `rank`, `world_size`, `process_group` and `store`.

    Without a process group or a store this is the default group, unless rank or size differ from it.

    Raises:
        ConfigError: they denote no group, or contradict each other.
    """
    if store is not None:
        if process_group is not None:
            raise ConfigError("process_group and store were both given: a process group has its own store")
        if rank is None or size is None:
            raise ConfigError(
                f"a store was given, but rank is {rank} and world_size is {size}: pass both, since the store does "
                f"not know them"
            )
        return _numbered(rank, size, store)
    if process_group is None and not (dist.is_available() and dist.is_initialized()):
        if rank is None or size is None:
            raise ConfigError(
                f"rank is {rank} and world_size is {size}: pass both, or call init_process_group first"
            )
        return _numbered(rank, size)
    group = group_of(_get_default_group() if process_group is None else process_group)
    rank = group.rank if rank is None else rank
    size = group.size if size is None else size
    if (rank, size) == (group.rank, group.size):
        return group
    if process_group is not None:
        raise ConfigError(
            f"this process is rank {group.rank} of {group.size} in process_group, but rank={rank} and "
            f"world_size={size} were given: leave them out"
        )
    return _numbered(rank, size)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a short text that identifies this list of ranks: 0-3, or 0,2, or 1-13:4 for 1,5,9,13."""
    parts: list[str] = []
    start = 0
    while start < len(ranks):
        stop = start + 1
        step = ranks[stop] - ranks[start] if stop < len(ranks) else 0
        while step > 0 and stop < len(ranks) and ranks[stop] - ranks[stop - 1] == step:
            stop += 1
        if stop - start < 3:
            stop = start + 1
            parts.append(str(ranks[start]))
        else:
            parts.append(f"{ranks[start]}-{ranks[stop - 1]}" + (f":{step}" if step > 1 else ""))
        start = stop
    text = ",".join(parts)
    if len(text) > LABEL_CHARS_MAX:
        return f"{text[: LABEL_CHARS_MAX - 20]}...#{fingerprint(ranks):016x}"
    return text


def _numbered(rank: int, size: int, store: Store | None = None) -> RankGroup:
    if not 0 <= rank < size:
        raise ConfigError(f"rank is {rank}; it must be 0 to {size - 1} (world size {size})")
    return RankGroup(rank, size, store=store)
