"""How many bytes per second go between this host and reducers, each alone and all at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from reducer.doctor.facts import Rate, Reducer
from reducer.doctor.reach import Visit
from reducer.doctor.session import Session

#: Seconds for all reducers alone, one after the other; the least and the most for one of them.
ALONE_S, ALONE_LEAST_S, ALONE_MOST_S = 10.0, 0.4, 2.0
#: Seconds for all at once.
TOGETHER_S = 3.0


def alone_s(count: int) -> float:
    """Return how many seconds to measure each of `count` reducers."""
    return min(max(ALONE_S / max(count, 1), ALONE_LEAST_S), ALONE_MOST_S)


def measure(reducers: Sequence[Reducer], visit: Visit, rank: int = 0) -> tuple[list[Rate], list[Rate]]:
    """Return the rates with each reducer that was given, its siblings included, and with all at once.

    Raises:
        ReductionError: a reducer stopped answering.
    """
    usable = [reducer for reducer in reducers if not reducer.trouble]
    given = list(dict.fromkeys(reducer.given for reducer in usable))
    alone = []
    for address in given:
        processes = [reducer.address for reducer in usable if reducer.given == address]
        alone.append(_rate(rank, address, processes, visit, alone_s(len(given))))
    if len(given) == 1:
        return alone, [Rate(rank=rank, reducer="", bytes_per_s=alone[0].bytes_per_s, resent=alone[0].resent)]
    return alone, [_rate(rank, "", [reducer.address for reducer in usable], visit, TOGETHER_S)]


def _rate(rank: int, reducer: str, processes: Sequence[str], visit: Visit, seconds: float) -> Rate:
    ready = threading.Barrier(len(processes))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(processes)) as pool:
        sessions = []
        for address in processes:
            session = Session(address, visit.access, visit.job, visit.timeout_s)
            sessions.append(stack.enter_context(contextlib.closing(session)))

        def pump(session: Session) -> float:
            ready.wait(visit.timeout_s)
            return session.pump(seconds)

        rates = list(pool.map(pump, sessions))
        infos = [session.tcp_info for session in sessions]
    sent, resent = sum(info.sent for info in infos), sum(info.resent for info in infos)
    return Rate(rank=rank, reducer=reducer, bytes_per_s=sum(rates), resent=resent / sent if sent else 0.0)
