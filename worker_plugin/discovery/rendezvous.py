"""How the ranks of a communicator agree on job, reducers and nodes, through a store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from reduction.errors import ReductionError
from reduction.process.place import loopback_id
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import meeting_point, roll_call
from worker_plugin.discovery.addresses import configured
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.meeting_point import MeetingPoint, RankInfo
from worker_plugin.discovery.named import named_reducers
from worker_plugin.discovery.nodes import Locality, Node, NodePlan, plan_nodes

#: Rank 0's choice, given the information of all ranks.
Choose: TypeAlias = Callable[[Mapping[int, RankInfo]], MeetingPoint]


@dataclass(frozen=True, slots=True)
class AgreedNodes:
    """The outcome of a rendezvous of ranks with a `local_group`."""

    meeting_point: MeetingPoint
    plan: NodePlan
    #: The node of this rank; None in flat mode.
    node: Node | None
    #: Lets the ranks of a node exchange their own addresses. No other communicator has used its keys.
    store: BoundedStore


class StoreRendezvous:
    """A rendezvous through the group's store: rank 0 gathers information, chooses for all, and broadcasts its choice.

    Without a store, as in jobs whose user gives rank and world size, the settings must specify everything.
    """

    def __init__(self, config: PluginConfig, store: Store | None, world_size: int, group: str = "") -> None:
        """Reserve store keys, if there are other ranks to meet. `group` is `RankGroup.label`.

        Runs on the thread of the first collective, so that all ranks reserve them in the same order. Each rank may use
        states with different job names in a different order, so each name has its own order.
        """
        self._group = group
        #: The job's name, once agreed on.
        self._job = ""
        self._prefix: roll_call.StorePrefix | None = None
        if store is not None and world_size > 1:
            purpose = "rendezvous" if config.job is None else f"rendezvous of {config.job}"
            self._prefix = roll_call.reserve_prefix(store, purpose)

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> MeetingPoint:
        """Return job name and addresses; block until all ranks are there, or one is too late.

        Raises:
            ReductionError: a rank did not join, settings contradict each other, or no reducer can be embedded.
        """
        if self._prefix is not None:
            return self._meet(self._prefix, config, rank, world_size, None).meeting_point
        if world_size > 1:
            meeting_point.check_without_store(config)
            meeting_point.warn_without_run(config)
        chosen = meeting_point.choose(config, {}, self._group)
        self._job = chosen.job
        if world_size == 1:
            return chosen
        return dataclasses.replace(chosen, named=named_reducers(chosen.addresses))

    def agree_on_nodes(
        self, config: PluginConfig, rank: int, world_size: int, locality: Locality
    ) -> AgreedNodes:
        """Return the result of `agree`, and which ranks form a node. Only with a store and other ranks.

        Raises:
            ReductionError: as for `agree`; or the ranks cannot form the nodes they want, see `plan_nodes`.
        """
        assert self._prefix is not None
        return self._meet(self._prefix, config, rank, world_size, locality)

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> MeetingPoint:
        """Return the address of a reducer that rank 0 starts because none is left; block like `agree`.

        Raises:
            ReductionError: a rank did not join, or runs on another host.
        """

        def choose(infos: Mapping[int, RankInfo]) -> MeetingPoint:
            # Under the job's name, so that this is not the reducer that the job has lost.
            return meeting_point.embed(self._job, infos, "no reducer is left", self._group)

        if self._prefix is None:
            return choose({})
        return self._meet(self._prefix, config, rank, world_size, None, choose).meeting_point

    def _meet(
        self,
        prefix: roll_call.StorePrefix,
        config: PluginConfig,
        rank: int,
        world_size: int,
        locality: Locality | None,
        choose: Choose | None = None,
    ) -> AgreedNodes:
        """Gather the information of all ranks, let rank 0 choose, and broadcast its choice."""
        wanted = configured(config)
        info = RankInfo(
            loopback_id(), None if wanted is None else list(wanted.texts), locality, config.colocated
        )
        store = prefix.open(config)
        if rank == 0:
            choose = choose or partial(meeting_point.choose, config, group=self._group)
            chosen, plan, nonce = _choose_for_all(store, config, world_size, info, choose)
        else:
            text, nonce = roll_call.answer_call(store, rank, info.to_json(), config)
            choice, plan_fields = json.loads(text)
            chosen, plan = MeetingPoint.from_json(choice, config, self._group), NodePlan(**plan_fields)
        self._job = chosen.job
        # No other life of the job has used this nonce, and only these ranks know it.
        chosen = dataclasses.replace(chosen, run=nonce)
        chosen = chosen.with_colocated(config, store, f"colocated/{nonce}", rank)
        if plan.size == 1:
            return AgreedNodes(chosen, plan, None, store)
        index, local_rank = divmod(rank, plan.size)
        first = index * plan.size
        answers = [roll_call.answer_of(store, nonce, first + other) for other in range(plan.size)]
        localities = [RankInfo.from_json(answer).locality for answer in answers]
        members = tuple(member for member in localities if member is not None)
        node = Node(index, world_size // plan.size, local_rank, members)
        return AgreedNodes(chosen, plan, node, store.below(nonce))


def _choose_for_all(
    store: BoundedStore, config: PluginConfig, world_size: int, own_info: RankInfo, choose: Choose
) -> tuple[MeetingPoint, NodePlan, str]:
    """Act as rank 0. Return its choice, and the nonce of its roll call."""
    call = roll_call.RollCall(store, own_info.to_json())
    try:
        answers = call.gather(world_size, config)
        infos = {0: own_info} | {rank: RankInfo.from_json(answers[rank]) for rank in sorted(answers)}
        plan = plan_nodes([info.locality for info in infos.values()])
        chosen = choose(infos)
    except ReductionError as error:
        call.broadcast_error(error)
        raise
    try:
        call.broadcast(json.dumps([chosen.to_json(), dataclasses.asdict(plan)]))
    except BaseException:
        chosen.stop()
        raise
    return chosen, plan, call.nonce
