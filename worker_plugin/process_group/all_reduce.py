"""Which all-reduces of a process group go through the reducers, and how they are issued."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import AllSettings
from worker_plugin.discovery.rank_group import RankGroup, ranks_text
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.process_group.work import AllReduceWork
from worker_plugin.state import ReductionState
from worker_plugin.tensors.admission import is_admitted
from worker_plugin.tensors.futures import Future

#: Torch names groups by small numbers, or by hashes, of which this many characters are enough.
_NAME_CHARS_MAX = 32


class AllReducer:
    """The all-reduces of one process group: a state of its own, so a job of its own for each group.

    Args:
        store: of this group alone.
        rank: of this process in the group.
        size: ranks of the group.
        timeout: of the group; REDUCTION_TIMEOUT_S wins.
        global_ranks: how the default group numbers the members; empty if there is none.
        name: tells the groups of a job apart; the same on all members.
        settings: of the state, beside REDUCTION_*.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        global_ranks: Sequence[int],
        name: str,
        settings: AllSettings,
    ) -> None:
        ranks = tuple(global_ranks) or tuple(range(size))
        label = f"{ranks_text(ranks)} pg {name[:_NAME_CHARS_MAX]}" if name else ""
        settings = settings.copy()
        if not os.environ.get("REDUCTION_TIMEOUT_S"):
            settings["timeout_s"] = timeout.total_seconds()
        self.state = ReductionState.of_ranks(RankGroup(rank, size, ranks, label, store), **settings)
        _all_reducers.add(self)

    def takes(self, tensors: Sequence[torch.Tensor], op: dist.ReduceOp) -> bool:
        """Whether reducers can do it; looks only at what all ranks of a correct program agree on."""
        return all(is_admitted(tensor, op) for tensor in tensors)

    def issue(self, tensors: Sequence[torch.Tensor], op: dist.ReduceOp) -> AllReduceWork:
        """Reduce each of some tensors over all ranks, in place.

        Raises:
            ReductionError: see `ReductionState.all_reduce`.
        """
        return AllReduceWork(tensors, [self._issue(tensor, op) for tensor in tensors])

    def _issue(self, tensor: torch.Tensor, op: dist.ReduceOp) -> Future:
        if tensor.is_contiguous() and not tensor.is_neg():
            return self.state.all_reduce(tensor, op)
        dense = tensor.detach().resolve_neg().contiguous()

        def copy_back(done: Future) -> torch.Tensor:
            return tensor.detach().copy_(done.value())

        return self.state.all_reduce(dense, op).then(copy_back)

    def begin_close(self) -> None:
        """Nothing: the state's own communicator is closed by worker_plugin/client.py."""

    def close(self) -> None:
        """Close the state."""
        self.state.close()


_all_reducers: ClosedAtExit[AllReducer] = ClosedAtExit()
