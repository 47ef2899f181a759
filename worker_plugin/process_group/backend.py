"""The backend of torch 2.14 and newer, which torch's own process group has inside, one for each device.

Unlike up to 2.13 (group.py) other devices may have another backend, and torch keeps Python's half of
a Work alive. What it shares with that: all_reduce.py, work.py and inner.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed.distributed_c10d import ProcessGroup, Store

from worker_plugin.config import AllSettings
from worker_plugin.process_group import inner
from worker_plugin.process_group.all_reduce import AllReducer
from worker_plugin.state import ReductionState


@inner.forwards(inner.FORWARDED, Backend)
class ReductionBackend(Backend):
    """What a group of ranks uses whose all-reduces go through the reducers; arguments as of ReductionProcessGroup."""

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
        super().__init__(rank, size)
        self._all_reducer = AllReducer(store, rank, size, timeout, global_ranks, name, settings or {})
        self._options = Backend.Options("reduction", timeout)
        self._inner = ProcessGroup(store, rank, size)  # which asks Gloo or NCCL by the tensors' device
        inner.register_backends(
            self._inner, inner.backends_of(store, rank, size, timeout, global_ranks, name)
        )

    @property
    def state(self) -> ReductionState:
        """The state behind the group."""
        return self._all_reducer.state

    @property
    def options(self) -> Backend.Options:
        """See torch."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        """See torch."""
        return False

    def getBackendName(self) -> str:
        """See torch."""
        return "reduction"

    @inner.not_compiled
    def allreduce(self, tensors: Any, opts: Any) -> dist.Work:
        """Reduce a tensor in place: through the reducers if they can, or else by the inner backend."""
        if len(tensors) == 1 and self._all_reducer.takes(tensors, opts.reduceOp):
            return self._all_reducer.issue(tensors, opts.reduceOp)
        return self._inner.allreduce(tensors, opts)

    @inner.not_compiled
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> dist.Work:
        """Reduce several tensors in place, each as `allreduce` does."""
        if tensors and self._all_reducer.takes(tensors, opts.reduceOp):
            return self._all_reducer.issue(tensors, opts.reduceOp)
        return self._inner.allreduce_coalesced(tensors, opts)

    def shutdown(self) -> None:
        """Leave in good order; torch calls it in destroy_process_group."""
        self.state.close()

    def abort(self) -> None:
        """Leave at once; collectives in flight fail, on all ranks."""
        self.state.abort()
