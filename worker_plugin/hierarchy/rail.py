"""Hierarchical mode: the communicator of one rail, whose ranks are the nodes."""

from __future__ import annotations

import socket
from dataclasses import replace

from reduction.errors import ReducerUnavailable
from reduction.rails import rail_name

from worker_plugin.client import Client
from worker_plugin.config import PluginConfig
from worker_plugin.discovery.announcement import ranks_text
from worker_plugin.discovery.meeting_point import MeetingPoint
from worker_plugin.discovery.nodes import Node
from worker_plugin.discovery.rank_group import RankGroup
from worker_plugin.discovery.rendezvous import Rendezvous
from worker_plugin.settings.kinds import SECONDS_MAX

#: How much longer a rail waits than a node before CollectiveTimeout, in seconds. If a rank is late,
#: its neighbours should say so first: they know which rank they wait for, other nodes know only
#: which rail.
PATIENCE_S = 1.0


class AgreedRendezvous:
    """The rendezvous of a communicator whose ranks have agreed before it was made.

    Args:
        meeting_point: Where they meet.
        fallback: How they can agree on a fallback. None for a rail, which has no fallback.
    """

    def __init__(self, meeting_point: MeetingPoint, fallback: Rendezvous | None = None) -> None:
        self._meeting_point = meeting_point
        self._fallback = fallback

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> MeetingPoint:
        """Return what they have agreed on."""
        return self._meeting_point

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> MeetingPoint:
        """See `Rendezvous.fall_back`."""
        if self._fallback is None:
            raise ReducerUnavailable("there is no fallback in hierarchical mode")
        return self._fallback.fall_back(config, rank, world_size)


def rail_client(config: PluginConfig, ranks: RankGroup, node: Node, meeting_point: MeetingPoint) -> Client:
    """Return the communicator of this rank's rail; ranks and meeting point are those of the whole job."""
    agreed = AgreedRendezvous(replace(meeting_point, job=rail_name(meeting_point.job, node.local_rank)))
    host = f"{socket.gethostname()}, global rank {ranks.global_rank}"
    patient = replace(config, timeout_s=min(config.timeout_s + PATIENCE_S, SECONDS_MAX))
    nodes = RankGroup(node.index, node.count, label=ranks.label)
    announced_ranks = "" if node.local_rank else ranks_text(ranks.size, node.count, ranks.label)
    return Client(patient, nodes, agreed, local_size=node.size, host=host, announced_ranks=announced_ranks)
