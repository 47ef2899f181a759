"""All measurements that one host can make alone, in one call."""

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
    """Return this host's facts about the reducers named by these strings. Blocks the loop at times.

    All of it runs on one loop, because gRPC may still have events for an ended loop, and would report them as errors.

    Args:
        texts: strings in any form of discovery.
        source: source of the strings.
        visit: how to visit the reducers.
        with_rates: whether to measure bandwidth.
        anyway: whether to measure bandwidth although the reducers serve jobs.

    Raises:
        ConfigError: a platform's document is malformed, or a certificate cannot be used.
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
