"""Names of rails. In hierarchical mode a job runs as several jobs, its rails, one per local rank of its nodes.

Rail i of job NAME is a separate job, `NAME@i`, whose ranks are the nodes. A reducer treats it like any
other job; only tokens take into account that it belongs to NAME. Workers reject job names that look
like a rail's, so that no other job can have the name of a rail.
"""

from __future__ import annotations

import re

from reduction.limits import WORLD_SIZE_MAX

#: Bytes of the longest suffix that turns a job's name into a rail's.
SUFFIX_BYTES_MAX = len(f"@{WORLD_SIZE_MAX - 1}")
# This matches only names written by `rail_name`, without leading zeros, so each rail of a job has one name.
_RAIL = re.compile(r"(.+)@(0|[1-9][0-9]{0,3})", re.DOTALL)


def rail_name(job: str, local_rank: int) -> str:
    """Return the name of the rail that a local rank of each node is on."""
    return f"{job}@{local_rank}"


def is_rail(name: str) -> bool:
    """Return whether a job of this name is a rail."""
    return _RAIL.fullmatch(name) is not None


def job_of(name: str) -> str:
    """Return the job that a rail belongs to; return any other name unchanged."""
    rail = _RAIL.fullmatch(name)
    return name if rail is None else rail[1]
