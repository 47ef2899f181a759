"""All that one host can find out by itself, in one go."""

from __future__ import annotations

from collections.abc import Sequence

from reduction.discovery.resolve import resolve
from reduction.errors import ReductionError

from reducer.doctor.facts import Facts, Rate, Worker
from reducer.doctor.host import HostProbe
from reducer.doctor.rates import measure
from reducer.doctor.reach import Visit, look_at


async def examine(
    texts: Sequence[str], source: str, visit: Visit, *, with_rates: bool = True, anyway: bool = False
) -> Facts:
    """Return what this host finds out about the reducers that these strings name. It blocks the loop at times.

    All of it is on one loop: gRPC may still have events for one that has ended, and would report that as an error.

    Args:
        texts: in any form of discovery.
        source: who named them.
        visit: how they are visited.
        with_rates: whether to measure bandwidth.
        anyway: whether to do that although they serve jobs.

    Raises:
        ConfigError: a platform's document is wrong, or a certificate cannot be used.
        ReducerUnavailable: a DNS name has too few addresses.
    """
    probe = HostProbe()
    addresses = resolve(texts, visit.timeout_s, visit.timeout_s).addresses
    reducers = await look_at(addresses, visit)
    jobs = sorted({job for reducer in reducers for job in reducer.jobs})
    alone: list[Rate] = []
    together: list[Rate] = []
    unmeasured = failure = ""
    if not with_rates:
        unmeasured = "--no-rates"
    elif jobs and not anyway:
        unmeasured = (
            f"job {', '.join(map(repr, jobs))} is running there; --anyway measures all the same, and slows it"
        )
    elif any(not reducer.trouble for reducer in reducers):
        try:
            alone, together = await measure(reducers, visit)
        except ReductionError as error:
            failure = str(error)
    worker = Worker(
        rank=0,
        host=probe.host(),
        source=source,
        addresses=list(addresses),
        reducers=reducers,
    )
    return Facts(workers=[worker], alone=alone, together=together, unmeasured=unmeasured, failure=failure)
