"""The checkpoints of a worker that is a node: its first rank performs them, and sends the results to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from reduction.errors import ReductionError

from worker_plugin.elastic import trees
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.node.node_rank import NodeRank
from worker_plugin.elastic.steps import OnChange, Steps


class NodeSteps:
    """Counterpart of `Steps` for a worker that is a node. For the training thread.

    Args:
        rank: this rank's communicator.
        steps: the worker's; set on its first rank only.
        on_change: called on the other ranks when the set of workers changes; `steps` calls them on the first.
    """

    def __init__(self, rank: NodeRank, steps: Steps | None, on_change: Sequence[OnChange]) -> None:
        self._rank, self._steps, self._on_change = rank, steps, on_change
        self.ranks: tuple[int, ...] = ()

    def agree(self, own: bool) -> bool:
        """Return the first rank's value on all ranks of the node; all of them call this.

        Raises:
            ReductionError: as for `NodeRank.tell`.
        """
        message = torch.tensor([own], dtype=torch.uint8)
        self._rank.tell(message).wait()
        return bool(message)

    def sync(self, training: Training) -> dict[str, Any]:
        """Return when a step may begin; see `Steps.sync`.

        Raises:
            ReductionError: as for `NodeRank.tell`; or this worker cannot take part, or the job has failed.
        """
        try:
            if self._steps is None:
                return self._follow(training)
            extra = self._steps.sync(training)
        except ReductionError as error:
            self._rank.abandon(error)
            raise
        tree: dict[str, Any] = {"ranks": list(self._steps.ranks), "extra": extra}
        tree["state"] = training.state() if self._steps.has_taken_state else None
        tree["buffers"] = training.buffers()
        trees.send(tree, self._rank.tell)
        self.ranks = self._steps.ranks
        return extra

    def _follow(self, training: Training) -> dict[str, Any]:
        training.check_extra()
        tree = trees.receive(self._rank.tell)
        if tree["state"] is not None:
            training.take(tree["state"])
        training.take_buffers(tree["buffers"])
        before, self.ranks = self.ranks, tuple(tree["ranks"])
        if before and before != self.ranks:
            for call in self._on_change:
                call(before, self.ranks)
        return dict(tree["extra"])
