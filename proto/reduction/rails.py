"""Names of rails. In hierarchical mode a job runs as several jobs, one per local rank of its nodes: its rails.

Rail i of job NAME is a job of its own, `NAME@i`, whose ranks are the nodes. To a reducer it is a job
like any other; only tokens take into account that it belongs to NAME. A worker accepts no job name
that looks like a rail's, so that no other job can have the name of a rail.
"""

from __future__ import annotations

import re

from reduction.limits import WORLD_SIZE_MAX

#: Bytes of the longest ending that makes a rail's name of a job's.
SUFFIX_BYTES_MAX = len(f"@{WORLD_SIZE_MAX - 1}")
# This matches only what `rail_name` writes, without leading zeros: each rail of a job has one name.
_RAIL = re.compile(r"(.+)@(0|[1-9][0-9]{0,3})", re.DOTALL)


def rail_name(job: str, local_rank: int) -> str:
    """Return the name of the rail that a local rank of each node is on."""
    return f"{job}@{local_rank}"


def is_rail(name: str) -> bool:
    """Whether a job of this name is a rail."""
    return _RAIL.fullmatch(name) is not None


def job_of(name: str) -> str:
    """Return the job that a rail belongs to; return any other name unchanged."""
    rail = _RAIL.fullmatch(name)
    return name if rail is None else rail[1]
