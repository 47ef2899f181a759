"""Measure the rates between this host and reducers, each alone and all together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from reducer.doctor.facts import Rate, Reducer
from reducer.doctor.reach import Visit

#: Total seconds for all reducers one after the other, and the minimum and maximum for each.
ALONE_S, ALONE_LEAST_S, ALONE_MOST_S = 10.0, 0.4, 2.0
#: Seconds for all together.
TOGETHER_S = 3.0


async def measure(reducers: Sequence[Reducer], visit: Visit) -> tuple[list[Rate], list[Rate]]:
    """Return the rates with each given reducer, including its siblings, and with all together.

    Raises:
        ReductionError: a reducer stopped answering.
    """
    usable = [reducer for reducer in reducers if not reducer.trouble]
    given = list(dict.fromkeys(reducer.given for reducer in usable))
    seconds = min(max(ALONE_S / max(len(given), 1), ALONE_LEAST_S), ALONE_MOST_S)
    alone = []
    for address in given:
        processes = [reducer.address for reducer in usable if reducer.given == address]
        alone.append(await _rate(address, processes, visit, seconds))
    if len(given) == 1:
        return alone, [Rate(rank=0, reducer="", bytes_per_s=alone[0].bytes_per_s, resent=alone[0].resent)]
    return alone, [await _rate("", [reducer.address for reducer in usable], visit, TOGETHER_S)]


async def _rate(reducer: str, processes: Sequence[str], visit: Visit, seconds: float) -> Rate:
    async with contextlib.AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(visit.session(address)) for address in processes]
        rates = await asyncio.gather(*(one.pump(seconds) for one in sessions))
        paths = [one.connection.path for one in sessions]
    sent, resent = sum(path.segments for path in paths), sum(path.retransmits for path in paths)
    return Rate(rank=0, reducer=reducer, bytes_per_s=sum(rates), resent=resent / sent if sent else 0.0)
