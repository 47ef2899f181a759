"""`Members`: the ranks of a process group, as torch describes them to whoever makes the group."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class Members:
    """The ranks of a process group, as one of them sees them."""

    #: A store for this group alone.
    store: Store
    #: The number of this process in the group.
    rank: int
    #: Ranks of the group.
    size: int
    #: Longest time of a collective.
    timeout: datetime.timedelta
    #: How the default group numbers them; empty if there is none.
    global_ranks: tuple[int, ...] = ()
    #: Tells the groups of a job apart; the same on all members.
    name: str = ""
