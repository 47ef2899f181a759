"""Hierarchical mode: each rank sends its share of the node's sum over its own rail, whose ranks are the nodes.

The rail of local rank i is a separate communicator, a `Client`, of job NAME@i.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from functools import partial
from typing import NoReturn

from reduction.errors import ReducerUnavailable
from reduction.rails import rail_name

from worker_plugin.client import Client
from worker_plugin.config import PluginConfig
from worker_plugin.discovery.announcement import ranks_text
from worker_plugin.discovery.meeting_point import MeetingPoint
from worker_plugin.discovery.nodes import Node, own_locality
from worker_plugin.discovery.rank_group import RankGroup
from worker_plugin.discovery.rendezvous import StoreRendezvous
from worker_plugin.hierarchy.exchange import Exchange
from worker_plugin.hierarchy.hierarchy import Hierarchy
from worker_plugin.settings.kinds import SECONDS_MAX

log = logging.getLogger(__name__)

#: How much longer a rail waits than a node before CollectiveTimeout, in seconds. If a rank is late, its neighbours
#: should report it first: they know which rank they wait for, whereas other nodes know only which rail.
PATIENCE_S = 1.0


class Rails(Hierarchy):
    """A rank's communicator, on its rail or, if `local_group` is "auto" and has no effect, for the whole job.

    Args:
        config: the settings.
        ranks: the ranks that reduce together, and this rank's number among them.
        rendezvous: used once, on the scatter thread.
    """

    def __init__(self, config: PluginConfig, ranks: RankGroup, rendezvous: StoreRendezvous) -> None:
        self._ranks, self._rendezvous = ranks, rendezvous
        super().__init__(config)

    def _start(self) -> None:
        config, ranks = self._config, self._ranks
        assert config.local_group is not None
        locality = own_locality(config.local_group, self._neighbours.address)
        nodes = self._rendezvous.agree_on_nodes(config, ranks.rank, ranks.size, locality)
        try:
            if nodes.node is None:
                plan = nodes.plan
                level = logging.WARNING if plan.is_unexpected else logging.INFO
                log.log(
                    level if ranks.rank == 0 else logging.DEBUG,
                    "local_group='auto' changes nothing: %s",
                    plan.reason,
                )
                fall_back = partial(self._rendezvous.fall_back, config, ranks.rank, ranks.size)
                self._adopt(Client(config, ranks, lambda: nodes.meeting_point, fall_back))
            else:
                self._meet(nodes.node, nodes.store, Exchange(nodes.node, config.wire))
                self._adopt(rail_client(config, ranks, nodes.node, nodes.meeting_point))
        except BaseException:
            nodes.meeting_point.stop()
            raise


def rail_client(config: PluginConfig, ranks: RankGroup, node: Node, meeting_point: MeetingPoint) -> Client:
    """Return the communicator of this rank's rail; `ranks` and `meeting_point` are those of the whole job."""
    meeting_point = replace(meeting_point, job=rail_name(meeting_point.job, node.local_rank))
    host = f"{socket.gethostname()}, global rank {ranks.global_rank}"
    patient = replace(config, timeout_s=min(config.timeout_s + PATIENCE_S, SECONDS_MAX))
    nodes = RankGroup(node.index, node.count, label=ranks.label)
    announced_ranks = "" if node.local_rank else ranks_text(ranks.size, node.count, ranks.label)
    return Client(
        patient,
        nodes,
        lambda: meeting_point,
        _no_fallback,
        local_size=node.size,
        host=host,
        announced_ranks=announced_ranks,
    )


def _no_fallback() -> NoReturn:
    raise ReducerUnavailable("there is no fallback in hierarchical mode")
