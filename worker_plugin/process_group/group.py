"""The process group of torch 2.8 to 2.13, which takes the place of torch's own group."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ProcessGroup,
    Store,
)

from worker_plugin.config import AllSettings
from worker_plugin.process_group import inner
from worker_plugin.process_group.all_reduce import AllReducer
from worker_plugin.state import ReductionState


@inner.forwards(inner.FORWARDED, ProcessGroup)
class ReductionProcessGroup(ProcessGroup):
    """A group of ranks whose all-reduces go through the reducers.

    Args:
        store: of this group alone.
        rank: of this process in the group.
        size: ranks of the group.
        timeout: of every collective.
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
        *,
        global_ranks: Sequence[int] = (),
        name: str = "",
        settings: AllSettings | None = None,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store, pybind11 refuses a subclass
        self._all_reducer = AllReducer(store, rank, size, timeout, global_ranks, name, settings or {})
        backends = inner.backends_of(store, rank, size, timeout, global_ranks, name)
        self._inner = ProcessGroup(store, rank, size)
        # In this group as well: C++ asks it for what it cannot override (reduce, gather), and takes
        # that way without the GIL.
        for group in (self._inner, self):
            inner.register_backends(group, backends)

    @property
    def state(self) -> ReductionState:
        """The state behind the group."""
        return self._all_reducer.state

    def getBackendName(self) -> str:
        """See torch."""
        return "reduction"

    @inner.not_compiled
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **named: Any) -> dist.Work:  # type: ignore[override]
        """Reduce a tensor in place: through the reducers if they can, or else by the inner group.

        Torch's overloads take one tensor or a list, and options, an operation as `opts` or `op`, or
        none.
        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = _op_of(opts, named)
        if len(tensors) == 1 and self._all_reducer.takes(tensors, op):
            return self._all_reducer.issue(tensors, op)
        options = AllreduceOptions()
        options.reduceOp = op
        return self._inner.allreduce(tensors, opts if isinstance(opts, AllreduceOptions) else options)

    @inner.not_compiled
    def allreduce_coalesced(self, tensors: Any, opts: Any = None, **named: Any) -> dist.Work:
        """Reduce several tensors in place, each as `allreduce` does."""
        tensors = list(tensors)
        op = _op_of(opts, named)
        if tensors and self._all_reducer.takes(tensors, op):
            return self._all_reducer.issue(tensors, op)
        options = AllreduceCoalescedOptions()
        options.reduceOp = op
        is_given = isinstance(opts, AllreduceCoalescedOptions)
        return self._inner.allreduce_coalesced(tensors, opts if is_given else options)

    def shutdown(self) -> None:
        """Leave in good order; torch calls it in destroy_process_group."""
        self.state.close()

    def abort(self) -> None:
        """Leave at once; collectives in flight fail, on all ranks."""
        self.state.abort()
        self._inner.abort()


def _op_of(opts: Any, named: dict[str, Any]) -> dist.ReduceOp:
    """Return the operation of an all-reduce; SUM if there is none."""
    given = named.get("op") if opts is None else opts
    if isinstance(given, (AllreduceOptions, AllreduceCoalescedOptions)):
        given = given.reduceOp
    return dist.ReduceOp(dist.ReduceOp.SUM) if given is None else given
