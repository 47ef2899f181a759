"""The torch.distributed backend "reduction" as a contender, to measure the overhead of a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from worker_plugin import ReductionState


class GroupState(ReductionState):
    """A state that reduces through a process group of the backend, as `dist.all_reduce` does."""

    def __init__(self, reducers: Any = None, **settings: Any) -> None:
        super().__init__(reducers, **settings)
        self._options = {"reducers": reducers, **settings}
        self._pg: dist.ProcessGroup | None = None

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        """Reduce a tensor. All ranks create the group at their first call, which is in the same turn."""
        from worker_plugin.process_group import ReductionOptions

        if self._pg is None:
            options = {name: self._options[name] for name in self._options.keys() - {"rank", "world_size"}}
            self._pg = dist.new_group(backend="reduction", pg_options=ReductionOptions(**options))
        return dist.all_reduce(tensor, op, group=self._pg, async_op=True)

    def close(self) -> None:
        """Shut down the process group, if there is one."""
        if self._pg is not None:
            self._pg.shutdown()
