"""One rank of a worker that is a node: the node's first rank acts for it with the other workers.

It is a `Hierarchy` whose only connection to other workers is the first rank's `Elastic`. In `sync` the user's
thread also takes part in the first rank's broadcasts.

If anything fails on one rank, the whole worker fails. With its first rank the worker leaves the job, which
continues without it. So a rank that dies takes its node down with it.
"""

from __future__ import annotations

import threading

import torch

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.rank_group import RankGroup
from worker_plugin.elastic.node.meeting import meet
from worker_plugin.elastic.node.through_first import ExchangeThroughFirst
from worker_plugin.elastic.worker import Elastic
from worker_plugin.hierarchy.hierarchy import Hierarchy
from worker_plugin.hierarchy.local_group import LocalGroup
from worker_plugin.tensors.futures import Future, make_future

#: How long a rank of the node may wait in `sync`, in seconds. The wait lasts until the worker is admitted, or until
#: others join. The death of a rank is noticed immediately.
SYNC_S = 30 * 86400.0


class NodeRank(Hierarchy):
    """One rank of a worker that is a node. All ranks of the node create one and wait for each other.

    Args:
        config: the settings.
        ranks: the ranks of the node.
        model: as for `Elastic`.

    Raises:
        ConfigError: the ranks of the node differ, or the settings cannot be used with `elastic`.
        WorkersMissing: a rank of the node did not join within `join_timeout_s`.
        WorkerLost: a rank of the node ended in the meantime.
    """

    def __init__(self, config: PluginConfig, ranks: RankGroup, model: str) -> None:
        self._ranks, self._model = ranks, model
        #: Set on the first rank only.
        self.worker: Elastic | None = None
        #: Held while the user's thread exchanges something in `sync`, in its own group.
        self._talking = threading.RLock()
        self._sync: LocalGroup | None = None
        super().__init__(config)
        self._ending.wait()

    def tell(self, message: torch.Tensor) -> Future:
        """Send the first rank's bytes to all ranks of the node, in place. All of them call this in `sync`.

        Raises:
            WorkerLost: another rank of the node has ended.
            ReductionError: another rank of the node has failed, with this error, or this communicator has ended.
        """
        try:
            with self._talking:
                self._ending.check()
                assert self._sync is not None
                with self._failing("a message to the ranks of this node failed"):
                    self._sync.broadcast(message)
        finally:
            self._end_talk()
        self._ending.check()
        future = make_future(message)
        future.set_result(message)
        return future

    def _end_talk(self) -> None:
        """Let the node's other ranks see that this rank has ended, unless the user's thread is about to do so."""
        if self._ending.final is not None and self._talking.acquire(blocking=False):
            try:
                if self._sync is not None:
                    self._sync.close()
            finally:
                self._talking.release()

    # ---- the scatter thread ----

    def _start(self) -> None:
        config = self._config
        node, store = meet(config, self._ranks, self._neighbours.address)
        self._meet(node, store, ExchangeThroughFirst(node, config.wire))
        self._sync = LocalGroup(
            store.below("sync"), node.local_rank, node.size, config.join_timeout_s, SYNC_S
        )
        if node.local_rank == 0:
            self.worker = Elastic(config, self._model, node.size)
            self._adopt(self.worker)
        self._ending.begin()
        self._end_talk()  # in case it has failed in the meantime

    # ---- the gather thread ----

    def _gather(self, group: LocalGroup) -> None:
        try:
            super()._gather(group)
        finally:
            self._end_talk()
