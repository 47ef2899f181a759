"""The environment of a training on one of several hosts, and a check that its command does not contradict it.

torchrun reads PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT unless its command line has
these options. `init_process_group` in a script without torchrun reads MASTER_ADDR, MASTER_PORT, RANK and
WORLD_SIZE, and Lightning reads NODE_RANK. A platform's own values may count the reducers as ranks, so ours
replace them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reduction.discovery.cluster import Cluster
from reduction.errors import ConfigError

#: torchrun's default port.
MASTER_PORT = 29500
#: Slurm's variable for the number of a task on its node; it is not 0 for a task other than the first.
_LOCAL_TASK = "SLURM_LOCALID"


def variables(cluster: Cluster, master_port: int) -> dict[str, str]:
    """Return the variables of a host with workers."""
    assert cluster.role == "worker"
    nodes, node, master = str(len(cluster.workers)), str(cluster.index), cluster.workers[0]
    port = str(master_port)
    return {
        "PET_NNODES": nodes,
        "PET_NODE_RANK": node,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": nodes,
        "RANK": node,
        "NODE_RANK": node,
    }


def check(cluster: Cluster, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Check that the command can run on the hosts of this cluster.

    Raises:
        ConfigError: the command contradicts the number of nodes, or runs several times on this one.
    """
    if (task := environ.get(_LOCAL_TASK, "0")) != "0":
        raise ConfigError(
            f"{_LOCAL_TASK} is {task}: `reducer run` runs once per node, with --ntasks-per-node=1, and torchrun "
            f"starts the ranks"
        )
    nodes = len(cluster.workers)
    options = _options(command)
    if "--standalone" in options and nodes > 1:
        raise ConfigError(
            f"--standalone trains on one host, but {cluster.source} has {nodes} with workers: leave it out"
        )
    said = {"--nnodes": _nnodes(options), "PET_NNODES": environ.get("PET_NNODES")}
    for name, value in said.items():
        if value is not None and value.isdecimal() and int(value) != nodes:
            raise ConfigError(
                f"{name} is {value}, but {cluster.source} has {nodes} hosts with workers: leave it out"
            )


def _options(command: Sequence[str]) -> list[str]:
    """Return the arguments before the script, as far as they can be distinguished from the script's own."""
    options: list[str] = []
    for argument in command[1:]:
        if argument.endswith(".py"):
            break
        options.append(argument)
    return options


def _nnodes(options: Sequence[str]) -> str | None:
    for index, option in enumerate(options):
        if option == "--nnodes" and index + 1 < len(options):
            return options[index + 1]
        if option.startswith("--nnodes="):
            return option.partition("=")[2]
    return None
