"""What all paces of a job have in common once nothing changes: they are shares of one rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reduction.model import NOWHERE
from reduction.pacing import UNPACED
from simulation.job import Job
from simulation.meter import Meter
from simulation.rank import SimRank, Wrong
from simulation.reducer import SimReducer

#: How long all paces must be unchanged, in seconds. An exchange between senders takes two ticks and two path latencies.
SETTLED_S = 0.5
#: Tolerated relative difference, since paces are whole numbers of bytes.
PART = 0.01
#: The smallest share of a collective that a reducer has.
SHARE_LEAST = 1e-3


def check(job: Job) -> None:
    """Check that all ranks send at the same rate, divided by the reducers' shares, and that no reducer is slower.

    Raises:
        Wrong: one does not.
    """
    rates: list[float] = []
    for rank in job.ranks:
        if not rank.is_alive:
            continue
        configuration = rank.core.epochs.configuration
        running = sum(link.lane is not None for link in rank.core.roster)
        if configuration is None or running < len(configuration.members):
            return  # the rank waits for lost reducers and sends nothing
        for share, sending, answering in _paces(rank):
            now = job.network.clock.now
            if min(now - meter.changed_at for meter in (sending, answering)) < SETTLED_S:
                return
            rates.append(_rate(sending, share))
            if _rate(answering, share) < rates[-1] * (1 - PART):
                raise Wrong(
                    f"{rank.host} is answered at {_rate(answering, share):g} and sends at {rates[-1]:g}"
                )
    if rates and not math.isclose(min(rates), max(rates), rel_tol=PART):
        raise Wrong(f"ranks of job {job.shape.name} send at different rates: {sorted(rates)}")


def _rate(meter: Meter, share: float) -> float:
    # A pace that was lifted counts as unpaced. The share may have changed since.
    return math.inf if meter.rate >= UNPACED * SHARE_LEAST else meter.rate / share


def _paces(rank: SimRank) -> Iterator[tuple[float, Meter, Meter]]:
    """Yield the share of each member on another host, and the meters of the connection to it in both directions."""
    configuration = rank.core.epochs.configuration
    if configuration is None:
        return
    for end in rank.links.values():
        reducer = end.peer.process
        if not isinstance(reducer, SimReducer) or end.meter is None or end.peer.meter is None:
            continue
        index = configuration.index_of(reducer.engine.jobs.incarnation)
        if index is not None and (reducer.host != rank.host or rank.identity.place == NOWHERE):
            yield configuration.weights[index] / sum(configuration.weights), end.meter, end.peer.meter
