"""Names of rails: the jobs into which a job falls apart in hierarchical mode, one per local rank of its nodes.

Rail i of job NAME is a job of its own, `NAME@i`, whose ranks are the nodes. To a reducer it is a job like any other;
only tokens know that it belongs to NAME. So that nobody else can be called like that, a worker takes no job name that
looks like a rail's.
"""

from __future__ import annotations

import re

from reduction.limits import WORLD_SIZE_MAX

#: Longest ending, in bytes.
SUFFIX_BYTES_MAX = len(f"@{WORLD_SIZE_MAX - 1}")
# As `rail_name` writes it, and in no other way: a job has one name for each of its rails.
_RAIL = re.compile(r"(.+)@(0|[1-9][0-9]{0,3})", re.DOTALL)


def rail_name(job: str, local_rank: int) -> str:
    """Return the name of the rail that a local rank of each node is on."""
    return f"{job}@{local_rank}"


def is_rail(name: str) -> bool:
    """Whether a job of this name is a rail."""
    return _RAIL.fullmatch(name) is not None


def job_of(name: str) -> str:
    """Return the job that a rail belongs to; any other name as it is."""
    rail = _RAIL.fullmatch(name)
    return name if rail is None else rail[1]
