"""How the ranks of one worker of an elastic job meet. They are a process group of their own, on one host."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch.distributed as dist
from reduction.errors import ConfigError, WorkersMissing
from reduction.text import load_json
from torch.distributed.distributed_c10d import _get_default_group

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.bounded_store import EXTRA_S, BoundedStore
from worker_plugin.discovery.nodes import Locality, Node, own_locality
from worker_plugin.discovery.rank_group import RankGroup, group_of


@dataclass(frozen=True, slots=True)
class WorkerNode(Node):
    """The ranks of one worker. `index` is the worker's number, `count` the initial number of workers."""

    def name(self, local_rank: int) -> str:
        """Return the name of a rank of this node in messages."""
        return f"local rank {local_rank} of worker {self.index} ({self.members[local_rank].host})"


def local_ranks(config: PluginConfig) -> RankGroup | None:
    """Return the ranks of this worker, or None if the worker is this process alone.

    Raises:
        ConfigError: their number differs from `local_group`.
    """
    wanted = config.local_group
    if wanted in (None, 1):
        return None
    group = group_of(_get_default_group()) if dist.is_available() and dist.is_initialized() else None
    size = 1 if group is None else group.size
    if wanted not in ("auto", size):
        raise ConfigError(
            f"local_group is {wanted}, and the default process group has {size} ranks: in an elastic job it must be "
            f"that of the ranks of one node; call init_process_group for these, or start them by torchrun with "
            f"--nnodes 1 --nproc-per-node {wanted}"
        )
    return None if size == 1 else group


def meet(config: PluginConfig, ranks: RankGroup, address: str) -> tuple[WorkerNode, BoundedStore]:
    """Return the node, once all of its ranks have joined, and their own store; `address` is for `Neighbours.meet`.

    Raises:
        ConfigError: the ranks are on several hosts, or have different settings.
        WorkersMissing: a rank did not join within `join_timeout_s`.
        WorkerLost: see `BoundedStore.ask`.
    """
    assert config.rank is not None  # `PluginConfig` has checked these
    assert config.world_size is not None
    assert config.local_group is not None
    assert ranks.store is not None  # a process group has one
    limit_s = config.join_timeout_s
    store = BoundedStore.connect(ranks.store, config).below("reduction-elastic")
    # All ranks create their communicators in the same order, one after the other where a state is restarted.
    store = store.below(str(store.ask(lambda raw: raw.add(f"turn/{ranks.rank}", 1))))
    own = asdict(own_locality(config.local_group, address)) | {"worker": [config.rank, config.world_size]}
    store.set(f"rank/{ranks.rank}", json.dumps(own))
    keys = [f"rank/{rank}" for rank in range(ranks.size)]
    try:
        store.run(lambda raw: raw.wait(keys, timedelta(seconds=limit_s)), limit_s + EXTRA_S)
    except dist.DistStoreError:
        raise WorkersMissing(
            f"not all {ranks.size} ranks of worker {config.rank} arrived within {limit_s:g} s "
            f"(join_timeout_s): all of them must call state.sync"
        ) from None
    fields = [load_json(store.get(key)) for key in keys]
    workers = [tuple(each.pop("worker")) for each in fields]
    members = tuple(Locality(**each) for each in fields)
    for rank, (worker, member) in enumerate(zip(workers, members, strict=True)):
        if worker != workers[0]:
            raise ConfigError(
                f"rank and world_size are {workers[0]} on local rank 0 and {worker} on local rank {rank}: in an "
                f"elastic job they are this node's number and the initial number of nodes, the same on all its ranks"
            )
        if member.local_group != members[0].local_group:
            raise ConfigError(
                f"local_group is {members[0].local_group!r} on local rank 0 and {member.local_group!r} on local rank "
                f"{rank}: set the same value on both"
            )
        if member.namespace_id != members[0].namespace_id:
            raise ConfigError(
                f"local ranks 0 ({members[0].host}) and {rank} ({member.host}) are on different hosts (or in "
                f"different namespaces of one): in an elastic job the process group must be that of one node"
            )
    return WorkerNode(config.rank, config.world_size, ranks.rank, members), store
