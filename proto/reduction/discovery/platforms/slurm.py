"""Slurm: `slurm:GROUP:PORT` is a component of a heterogeneous job, `slurm:nodes=LIST:PORT` names nodes.

Every step of a heterogeneous job has SLURM_JOB_NODELIST_HET_GROUP_n for each component n, while
SLURM_JOB_NODELIST is for its own component: https://slurm.schedmd.com/heterogeneous_jobs.html
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from reduction.discovery.address_forms import port_of
from reduction.discovery.cluster import Cluster, cluster_of_hosts
from reduction.discovery.platforms.nodelist import hostnames
from reduction.errors import ConfigError

COMPONENT = "SLURM_JOB_NODELIST_HET_GROUP_"


def find(text: str, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster. All nodes of the job that have no reducer are workers.

    Raises:
        ConfigError: the string has neither form, a node list is malformed, or the job has no such
            component.
    """
    where, _, port = text.partition(":")[2].rpartition(":")
    number = port_of(text, port)
    components = _components(environ)
    if where.startswith("nodes="):
        listed = where.removeprefix("nodes=")
    elif where.isascii() and where.isdecimal():
        if int(where[:9]) not in components:
            raise ConfigError(
                f"reducers {text!r}: {COMPONENT}{where} is not set; this job has "
                + (f"components 0 to {len(components) - 1}" if components else "no components")
            )
        listed = components[int(where[:9])]
    else:
        raise ConfigError(
            f"reducers {text!r}: write slurm:GROUP:PORT with a number, or slurm:nodes=LIST:PORT"
        )
    reducers = list(dict.fromkeys(hostnames(listed)))
    if not reducers:
        raise ConfigError(f"reducers {text!r}: the node list is empty")
    lists = list(components.values()) or [environ.get("SLURM_JOB_NODELIST", "")]
    nodes = dict.fromkeys(itertools.chain.from_iterable(map(hostnames, lists)))
    workers = [node for node in nodes if node not in reducers]
    return cluster_of_hosts("slurm", reducers, number, workers, environ.get("SLURMD_NODENAME"))


def _components(environ: Mapping[str, str]) -> dict[int, str]:
    """Return the node list of each component; none if the job is not heterogeneous."""
    found: dict[int, str] = {}
    while (nodes := environ.get(f"{COMPONENT}{len(found)}")) is not None:
        found[len(found)] = nodes
    return found
