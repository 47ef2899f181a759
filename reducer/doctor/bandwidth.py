"""Find slow links, reducers and pairs, and packet losses from the measured rates. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from reducer.doctor.facts import Facts, Rate
from reducer.doctor.findings import Finding, Level, best_by, mbit, name_of, short_of_cores, sums_by_reducer

#: A link, a reducer or a pair is slow below this fraction of the usual rate.
SLOW_PART = 0.8
#: The threshold for all together, where ranks and reducers also wait for each other and share cores.
TOGETHER_PART = 0.6
#: A larger fraction is lost only if a queue is too short or a cable is bad. TCP itself fills queues until they drop
#: packets: four workers at one reducer lost 1.1 to 2.1 % on average in a queue of 20 ms, and single ones up to 6 %
#: within half a second.
RESENT_PART = 0.03


def bandwidth(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the rates."""
    names = {worker.rank: name_of(worker, facts) for worker in facts.workers}
    of_worker = best_by(facts.alone, "rank")
    of_reducer = best_by(facts.alone, "reducer")
    short = short_of_cores(facts)
    #: Pairs on one host, without a link in between.
    near = {
        (worker.rank, found.given) for worker in facts.workers for found in worker.reducers if found.is_near
    }
    slow = set()
    for rank, rate, most in _slower(of_worker):
        slow.add(rank)
        is_near = all(pair in near for pair in ((rank, reducer) for reducer in of_reducer))
        # If all hosts lack cores, that does not explain differences between their links.
        blamed = {rank} & short if is_near or not set(of_worker) <= short else ()
        than = "while other workers' links carry"
        yield _slow_link(f"the link of {names[rank]}", rate, most, than, blamed, is_near=is_near)
    for reducer, rate, most in _slower(of_reducer):
        slow.add(reducer)
        beside = {rank for rank in of_worker if (rank, reducer) in near}
        than = "while other reducers' links carry"
        where = f"the link of reducer {reducer}"
        yield _slow_link(where, rate, most, than, beside & short, is_near=beside == set(of_worker))
    for pair in facts.alone:
        most = min(of_worker[pair.rank], of_reducer[pair.reducer])
        if pair.bytes_per_s < SLOW_PART * most and not slow & {pair.rank, pair.reducer}:
            where = f"the path from {names[pair.rank]} to {pair.reducer}"
            is_near = (pair.rank, pair.reducer) in near
            than = "while the other paths of both ends carry"
            yield _slow_link(where, pair.bytes_per_s, most, than, {pair.rank} & short, is_near=is_near)
    if facts.expected_mbit:
        for rank, rate in of_worker.items():
            if rate < SLOW_PART * facts.expected_mbit * 1e6 / 8 and rank not in slow:
                expected = facts.expected_mbit * 1e6 / 8
                where = f"the link of {names[rank]}"
                yield _slow_link(where, rate, expected, "but --link says", (), is_near=False)
    yield from _losses(facts, names)
    for reducer, got in sums_by_reducer(facts.incast).items():
        if got < TOGETHER_PART * (alone := of_reducer.get(reducer, 0.0)):
            yield Finding(
                Level.SLOW,
                "bandwidth",
                f"reducer {reducer}",
                f"it receives {mbit(got)} from all workers together, but {mbit(alone)} from one",
                "look for a short queue at its switch port, or for a lack of cores on its host",
                1 - got / alone,
                ranks=tuple(sorted(short)),
            )
    yield from _all_together(facts, of_worker, of_reducer, short)


def _all_together(
    facts: Facts, of_worker: dict[int, float], of_reducer: dict[str, float], short: Collection[int]
) -> Iterator[Finding]:
    if not facts.together or not of_worker or any(rate.resent > RESENT_PART for rate in facts.together):
        return
    got = min(rate.bytes_per_s for rate in facts.together)
    possible = min(min(of_worker.values()), sum(of_reducer.values()) / len(of_worker))
    if got < TOGETHER_PART * possible:
        yield Finding(
            Level.SLOW,
            "bandwidth",
            "all to all",
            f"each worker gets {mbit(got)}, but the links carry {mbit(possible)}",
            "look for a lack of cores on workers' and reducers' hosts, or for a switch that is too slow",
            1 - got / possible,
            ranks=tuple(sorted(short)),
        )


def _losses(facts: Facts, names: dict[int, str]) -> Iterator[Finding]:
    """Yield findings about packet losses.

    For incast only means count: a rank's over all reducers, and a reducer's over all other ranks. In half a second one
    of many workers may lose a lot to the others by chance.
    """
    of_incast = [
        Rate(rank=rank, reducer="", bytes_per_s=0.0, resent=_resent(facts.incast, rank=rank))
        for rank in sorted({rate.rank for rate in facts.incast})
    ]
    worst: dict[int, Rate] = {}
    for rate in (*facts.alone, *of_incast, *facts.together):
        if rate.resent > worst.get(rate.rank, rate).resent or rate.rank not in worst:
            worst[rate.rank] = rate
    losing = {rank: rate for rank, rate in worst.items() if rate.resent > RESENT_PART}
    for rank, rate in losing.items():
        reducers = f"reducer {rate.reducer}" if rate.reducer else "all reducers"
        yield _lossy(f"{names[rank]} to {reducers}", rate.resent)
    others = [rate for rate in facts.incast if rate.rank not in losing]
    for reducer in dict.fromkeys(rate.reducer for rate in others):
        if (resent := _resent(others, reducer=reducer)) > RESENT_PART:
            yield _lossy(f"all workers at once to reducer {reducer}", resent)


def _resent(rates: Iterable[Rate], **which: Any) -> float:
    """Return the mean retransmitted fraction of the rates with these fields."""
    return statistics.fmean(
        rate.resent for rate in rates if all(getattr(rate, name) == value for name, value in which.items())
    )


def _lossy(where: str, resent: float) -> Finding:
    return Finding(
        Level.SLOW,
        "bandwidth",
        where,
        f"{resent:.1%} of what was sent was lost and retransmitted",
        "look for a queue that is too short (switch, tc, a cloud's rate limit) or a bad cable",
        min(0.9, 10 * resent),
    )


def _slow_link(
    where: str, rate: float, most: float, than: str, blamed: Collection[int], *, is_near: bool
) -> Finding:
    """Return the finding. `blamed` ranks lack cores, and with `is_near` both ends are on one host."""
    return Finding(
        Level.SLOW,
        "bandwidth",
        where,
        f"it carries {mbit(rate)}, {than} {mbit(most)}",
        "look for a lack of cores: this is within one host"
        if is_near
        else "look at the cable, the card's negotiated speed, the machine's type, and other traffic",
        1 - rate / most,
        ranks=tuple(blamed),
    )


def usual(rates: Iterable[float]) -> float:
    """Return the usual rate, which is the median of the upper half, or the better one of two."""
    ascending = sorted(rates)
    return statistics.median(ascending[len(ascending) // 2 :])


def _slower(best: dict[Any, float]) -> Iterator[tuple[Any, float, float]]:
    """Yield the keys whose rate is unusually low, with that rate and the usual one."""
    if len(best) > 1:
        most = usual(best.values())
        for key, rate in best.items():
            if rate < SLOW_PART * most:
                yield key, rate, most
