"""Vertex AI: `vertex:` is the third worker pool of CLUSTER_SPEC, as for Google's own Reduction Server.

https://cloud.google.com/vertex-ai/docs/training/distributed-training describes the variable:

    {"cluster": {"workerpool0": ["HOST:2222"], "workerpool2": [...]}, "task": {"type": "workerpool0",
     "index": 0, "trial": "1"}}

Pools 0 and 1 are the workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reduction.discovery.cluster import Cluster, Role
from reduction.discovery.platforms.documents import Malformed, parse_document, strings
from reduction.errors import ConfigError

VARIABLE = "CLUSTER_SPEC"
POOL = "workerpool2"


def find(text: str, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster; `text` is `vertex:`, or `vertex:workerpoolN` if the reducers are in pool N.

    Raises:
        ConfigError: the variable is unset or malformed, or the pool is empty.
    """
    pool = text.partition(":")[2] or POOL
    if re.fullmatch("workerpool[1-3]", pool) is None:
        raise ConfigError(f"reducers {text!r}: reducers can be in workerpool1, workerpool2 or workerpool3")
    spec = environ.get(VARIABLE)
    if not spec:
        raise ConfigError(
            f"reducers {text!r}: {VARIABLE} is not set, so this is not a Vertex AI job of several replicas"
        )
    cluster = parse(spec, pool)
    if not cluster.reducers:
        raise ConfigError(f"reducers {text!r}: {VARIABLE} has no replicas in {pool}")
    return cluster


def parse(spec: str, pool: str = POOL) -> Cluster:
    """Return the cluster of a CLUSTER_SPEC. Its `reducers` are empty if the pool is.

    Raises:
        ConfigError: `spec` is malformed.
    """
    return parse_document(VARIABLE, "Vertex AI", spec, lambda document: _parse(document, pool))


def _parse(document: Mapping[str, Any], pool: str) -> Cluster:
    pools, task = document.get("cluster"), document.get("task") or {}
    if not isinstance(pools, dict):
        raise Malformed("it has no object 'cluster'")
    if not isinstance(task, dict):
        raise Malformed(f"task is not an object: {task!r}")
    reducers = strings(pools, pool)
    worker_pools = [name for name in ("workerpool0", "workerpool1") if name != pool]
    workers = [address for name in worker_pools for address in strings(pools, name)]
    own_pool, index = task.get("type"), task.get("index")
    role: Role | None = None
    bind = None
    if own_pool == pool or own_pool in worker_pools:
        if type(index) is not int or not 0 <= index < len(pools.get(own_pool) or ()):
            raise Malformed(f"task.index is {index!r}, which is not a replica of {own_pool}")
        role = "reducer" if own_pool == pool else "worker"
        if role == "reducer":
            bind = f"0.0.0.0:{reducers[index].rpartition(':')[2]}"
        elif own_pool == "workerpool1":
            index += len(strings(pools, "workerpool0"))
    return Cluster(
        "vertex",
        tuple(reducers),
        tuple(address.rpartition(":")[0] or address for address in workers),
        role,
        None if role is None else index,
        bind,
    )
