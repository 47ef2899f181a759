"""The communicator and steps of a state in an elastic job, either for a worker or for one rank of a node."""

from __future__ import annotations

from collections.abc import Sequence

from worker_plugin.communicator import Communicator
from worker_plugin.config import PluginConfig
from worker_plugin.discovery import meeting_point
from worker_plugin.elastic.node.meeting import local_ranks
from worker_plugin.elastic.node.node_rank import NodeRank
from worker_plugin.elastic.node.node_steps import NodeSteps
from worker_plugin.elastic.steps import OnChange, Steps
from worker_plugin.elastic.worker import Elastic


def make_communicator(config: PluginConfig, model: str = "") -> Elastic | NodeRank:
    """Return the communicator; with `local_group`, once the node's other ranks make theirs as well.

    Args:
        config: the settings.
        model: everything about the model that must be the same on all workers, as a string.

    Raises:
        ConfigError: a setting is missing, or cannot be used with `elastic`, or the ranks of the node differ.
        WorkersMissing: a rank of the node did not join within `join_timeout_s`.
        WorkerLost: a rank of the node ended in the meantime.
    """
    meeting_point.check_without_store(config)
    ranks = local_ranks(config)
    if ranks is None:
        return Elastic(config, model)
    return NodeRank(config, ranks, model)


def make_steps(
    communicator: Communicator, config: PluginConfig, on_change: Sequence[OnChange]
) -> Steps | NodeSteps:
    """Return the checkpoints of a communicator that `make_communicator` returned."""
    worker = communicator.worker if isinstance(communicator, NodeRank) else communicator
    steps = None
    if worker is not None:
        assert isinstance(worker, Elastic)
        steps = Steps(worker, config.min_workers, config.join_timeout_s, on_change)
    if isinstance(communicator, NodeRank):
        return NodeSteps(communicator, steps, on_change)
    assert steps is not None  # it is a worker itself
    return steps
