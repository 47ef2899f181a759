"""Place of a reducer without a configured address, found from its Vertex AI, SageMaker or Slurm job.

source                                  reducers
REDUCTION_REDUCERS, if it has a string    as in the string, since the workers read the same variable
  such as slurm:1:50051
CLUSTER_SPEC                            Vertex AI's third worker pool
resourceconfig.json                     SageMaker's instance group `reducers`
SLURM_STEP_NODELIST                     the nodes of this process's Slurm step; `srun` sets it, and a batch
                                        script outside any step does not have it
"""

from __future__ import annotations

from collections.abc import Mapping

from reduction.discovery.cluster import DEFAULT_PORT, REDUCERS_VARIABLE, Cluster
from reduction.discovery.platforms.automatic import naming_platform
from reduction.discovery.schemes import FIXED, cluster_of, scheme_of, split
from reduction.errors import ConfigError

STEP = "SLURM_STEP_NODELIST"


def own_place(environ: Mapping[str, str]) -> tuple[Cluster, str] | None:
    """Return the cluster and its source, or None without one. It has a `bind` if this host is a reducer.

    Raises:
        ConfigError: a platform's data is malformed; two platforms name reducers; or this host is not a
            reducer according to the source.
    """
    found = _find(environ)
    if found is None or found[0].role == "reducer":
        return found
    cluster, source = found
    what = "none of the workers or reducers"
    if cluster.role == "worker":
        what = f"worker {cluster.index} of {len(cluster.workers)}"
    raise ConfigError(
        f"{source} says that this host is {what}, and that reducers serve at {', '.join(cluster.reducers)}: run "
        f"the training here, or give --bind (REDUCER_BIND) to serve on this host too"
    )


def _find(environ: Mapping[str, str]) -> tuple[Cluster, str] | None:
    for text in split(environ.get(REDUCERS_VARIABLE, "")):
        if scheme_of(text) in FIXED:  # excludes Ray, because asking it would connect to it
            return cluster_of(text, environ), f"{REDUCERS_VARIABLE}={text}"
    if (found := naming_platform(environ)) is not None:
        return found
    nodes = environ.get(STEP)
    if nodes and environ.get("SLURMD_NODENAME"):
        return cluster_of(f"slurm:nodes={nodes}:{DEFAULT_PORT}", environ), STEP
    return None
