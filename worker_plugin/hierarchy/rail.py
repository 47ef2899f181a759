"""Hierarchical mode: the communicator of one rail, whose ranks are the nodes."""

from __future__ import annotations

import socket
from dataclasses import replace

from reduction.errors import ReducerUnavailable
from reduction.rails import rail_name

from worker_plugin.client import Client
from worker_plugin.config import PluginConfig
from worker_plugin.discovery.announcement import ranks_text
from worker_plugin.discovery.nodes import Node
from worker_plugin.discovery.rendezvous import Meeting, Place
from worker_plugin.rank_group import RankGroup
from worker_plugin.settings.kinds import SECONDS_MAX

#: How much longer a rail waits than a node before CollectiveTimeout, in seconds. If a rank is late,
#: its neighbours should say so first: they know which rank they wait for, other nodes know only
#: which rail.
PATIENCE_S = 1.0


class Agreed:
    """What the ranks of a communicator agreed on before it was made; see `client.Agreement`.

    Args:
        place: where they meet.
        meeting: where they can agree on a fallback; None of a rail, which has none.
    """

    def __init__(self, place: Place, meeting: Meeting | None = None) -> None:
        self._place = place
        self._meeting = meeting

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return it."""
        return self._place

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """See `Meeting.fall_back`."""
        if self._meeting is None:
            raise ReducerUnavailable("there is no fallback in hierarchical mode")
        return self._meeting.fall_back(config, rank, world_size)


def rail_client(config: PluginConfig, ranks: RankGroup, node: Node, place: Place) -> Client:
    """Return the communicator of this rank's rail; `ranks` are those of the whole job, `place` is where they meet."""
    agreed = Agreed(replace(place, job=rail_name(place.job, node.local_rank)))
    host = f"{socket.gethostname()}, global rank {ranks.global_rank}"
    patient = replace(config, timeout_s=min(config.timeout_s + PATIENCE_S, SECONDS_MAX))
    nodes = RankGroup(node.index, node.count, label=ranks.label)
    who = "" if node.local_rank else ranks_text(ranks.size, node.count, ranks.label)
    return Client(patient, nodes, agreed, local_size=node.size, host=host, who=who)
