"""torchft: a process group for its Manager whose all-reduces go through the reducers.

    Manager(pg=ProcessGroupReduction(timeout=timedelta(seconds=60)), ...)

torchft decides which ranks take part in a step, and each of its quorums becomes a job of its own. It works with
torchft's DDP, LocalSGD and DiLoCo. `wire_dtype="int8"` makes outer steps over slow links smaller.
"""

from __future__ import annotations

import datetime
from typing import Any, Unpack

from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed.distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

from worker_plugin.config import AllSettings
from worker_plugin.process_group.groups import ReductionProcessGroup


class ProcessGroupReduction(ProcessGroupWrapper):
    """A process group that torchft reconfigures whenever its quorum changes.

    Args:
        timeout: of every collective.
        **settings: of `ReductionState`, in addition to REDUCTION_*. A `job` would be the same for every quorum, so
        leave it out.
    """

    _pg: Any

    def __init__(
        self, timeout: datetime.timedelta = datetime.timedelta(seconds=60), **settings: Unpack[AllSettings]
    ) -> None:
        super().__init__(timeout)
        self._settings = settings

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ReductionProcessGroup:
        """Create the group of a quorum, which has its own `store`."""
        ranks = _DistributedBackendOptions()
        ranks.store, ranks.group_rank, ranks.group_size = store, rank, world_size
        ranks.timeout = self._timeout
        return ReductionProcessGroup(ranks, self._settings)

    def abort(self, errored: bool = True) -> None:
        """Leave the quorum immediately."""
        group, self._pg = self._pg, None
        if group is not None:
            group.abort()

    def getBackendName(self) -> str:
        """See torch."""
        return "torchft-reduction"
