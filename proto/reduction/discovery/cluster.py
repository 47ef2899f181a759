"""A job as its platform describes it: reducers, workers, and the role of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["worker", "reducer"]

#: Port of reducers unless another one is given.
DEFAULT_PORT = 50051
#: Environment variable that names reducers.
REDUCERS_VARIABLE = "REDUCTION_REDUCERS"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The answer of one source. It is equal on all hosts except for `role`, `index` and `bind`."""

    #: Name of the source, such as "vertex" or "slurm".
    source: str
    #: HOST:PORT of each reducer, in the same order on all hosts.
    reducers: tuple[str, ...]
    #: The workers' hosts in node order; () if they are not known.
    workers: tuple[str, ...] = ()
    #: None if this host is neither, or the source does not know.
    role: Role | None = None
    #: Position of this host among the reducers or the workers.
    index: int | None = None
    #: Address that a reducer on this host binds to; None if the host is not a reducer.
    bind: str | None = None


def cluster_of_hosts(
    source: str, reducers: Sequence[str], port: int, workers: Sequence[str], own: str | None
) -> Cluster:
    """Return the cluster of a platform that lists hosts, each with one reducer or one node of workers.

    Args:
        source: name of the platform.
        reducers: hosts of the reducers.
        port: port of all reducers.
        workers: hosts of the workers.
        own: name of this host in one of the lists.
    """
    role: Role | None = "reducer" if own in reducers else "worker" if own in workers else None
    index = None
    if own is not None and role is not None:
        index = (reducers if role == "reducer" else workers).index(own)
    return Cluster(
        source,
        tuple(f"{host}:{port}" for host in reducers),
        tuple(workers),
        role,
        index,
        f"0.0.0.0:{port}" if role == "reducer" else None,
    )
