"""torchft: a process group for its Manager whose all-reduces go through the reducers.

    Manager(pg=ProcessGroupReduction(timeout=timedelta(seconds=60)), ...)

torchft decides who takes part in a step; each of its quorums becomes a job of its own. It works with
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
    """A process group that torchft configures again whenever its quorum changes.

    Args:
        timeout: of every collective.
        **settings: of `ReductionState`, beside REDUCTION_*. A `job` would be the same for every
            quorum, so leave it out.
    """

    _pg: Any

    def __init__(
        self, timeout: datetime.timedelta = datetime.timedelta(seconds=60), **settings: Unpack[AllSettings]
    ) -> None:
        super().__init__(timeout)
        self._settings = settings

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ReductionProcessGroup:
        """Make the group of a quorum; `store` is its own."""
        ranks = _DistributedBackendOptions()
        ranks.store, ranks.group_rank, ranks.group_size = store, rank, world_size
        ranks.timeout = self._timeout
        return ReductionProcessGroup(ranks, self._settings)

    def abort(self, errored: bool = True) -> None:
        """Leave the quorum at once."""
        group, self._pg = self._pg, None
        if group is not None:
            group.abort()

    def getBackendName(self) -> str:
        """See torch."""
        return "torchft-reduction"
