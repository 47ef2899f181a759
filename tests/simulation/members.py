"""Which reducers a job must use once nothing changes: all that are up and would have a share."""

from __future__ import annotations

from collections.abc import Iterable

from simulation.job import Job
from simulation.rank import Wrong
from simulation.reducer import SimReducer

from worker_plugin.core.membership.weights import with_share


def check(job: Job, reducers: Iterable[SimReducer]) -> None:
    """Check that every running reducer process takes part, or stands by because of the hosts' link rates.

    Raises:
        Wrong: one does not.
    """
    leader = job.member(0)
    configuration = None if leader is None else leader.core.epochs.configuration
    # A new reducer only takes part once all ranks are there.
    if leader is None or configuration is None or any(rank.is_over for rank in job.ranks):
        return
    there = [link for link in leader.core.roster.links if link.is_up]
    stands_by = {link.incarnation for link in there} - {link.incarnation for link in with_share(there)}
    for reducer in reducers:
        incarnation = reducer.engine.jobs.incarnation
        if not reducer.is_alive or incarnation in stands_by:
            continue
        if configuration.index_of(incarnation) is None:
            raise Wrong(f"job {job.shape.name} has done without {reducer.address} for long, which is there")
