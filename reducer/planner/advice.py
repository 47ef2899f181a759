"""Advice: predicted steps with several numbers of reducers, their costs, and which number is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reducer.planner.formulas import Step, Training, reducer_step, reducers_for_full_gain, ring_step

#: A plan counts as faster than another only if its step is shorter by at least this fraction.
NOTICEABLE = 0.02
#: Above this round trip slow starts and losses take longer than predicted; see "Long paths" in docs/measured.md.
LONG_PATH_S = 0.02
#: The messages of sums below this many bytes cost more time than predicted; see "Sizes" in docs/measured.md.
SMALL_SUM_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of machines per hour, in any currency."""

    worker: float
    reducer: float
    #: Number of steps for which costs are given, such as those of an epoch.
    steps: int = 1000

    def cost(self, workers: int, reducers: int, step_s: float) -> float:
        """Return the cost of the steps with these machines if each step takes `step_s` seconds."""
        per_hour = workers * self.worker + reducers * self.reducer
        return per_hour * self.steps * step_s / 3600


@dataclass(frozen=True, slots=True)
class Plan:
    """A number of reducers, or None for a ring, and its consequences."""

    reducers: int | None
    step: Step
    #: Speed relative to the ring.
    speedup: float
    #: Fraction of a worker's price above which a reducer's machine makes the same work more expensive than with
    #: the ring. None if the plan has no such machines.
    price_limit: float | None
    #: Cost of `Prices.steps` steps; None without prices.
    cost: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """All plans, the ring first, and the one to take."""

    plans: tuple[Plan, ...]
    best: Plan
    #: The reason in one sentence.
    reason: str
    #: Effects that the prediction does not include.
    doubts: tuple[str, ...]
    prices: Prices | None


def advise(training: Training, counts: Sequence[int], prices: Prices | None) -> Advice:
    """Return the plan for each of these numbers of reducers, and the one to choose.

    With prices the best is the one whose steps cost least. Without prices it is the smallest number with
    which steps are as short as possible.
    """
    ring = ring_step(training)
    plans = [_plan(training, None, ring, ring, prices)]
    plans += [
        _plan(training, count, reducer_step(training, count), ring, prices) for count in sorted(set(counts))
    ]
    best = plans[0]
    for plan in plans[1:]:
        if _measure(plan) < _measure(best) * (1 - NOTICEABLE):
            best = plan
    reason = _reason(training, plans, best, prices)
    return Advice(tuple(plans), best, reason, tuple(_doubts(training)), prices)


def usual_counts(training: Training) -> list[int]:
    """Return the numbers of reducers to consider: none, and quarters of the number for the full gain."""
    full = reducers_for_full_gain(training)
    return sorted({0, *(-(-full * part // 4) for part in (1, 2, 3, 4))})


def _plan(training: Training, reducers: int | None, step: Step, ring: Step, prices: Prices | None) -> Plan:
    speedup = ring.total_s / step.total_s
    cost = None if prices is None else prices.cost(training.workers, reducers or 0, step.total_s)
    limit = training.workers * (speedup - 1) / reducers if reducers else None
    return Plan(reducers, step, speedup, limit, cost)


def _measure(plan: Plan) -> float:
    return plan.step.total_s if plan.cost is None else plan.cost


def _reason(training: Training, plans: Sequence[Plan], best: Plan, prices: Prices | None) -> str:
    if best.reducers is not None:
        helped = "" if best.reducers >= training.workers else ', with colocated="auto"'
        text = f"take {best.reducers} reducers{helped}: steps are {best.speedup:.2f} times as fast as with a ring"
        if prices is not None:
            text += f", and {prices.steps} of them cost {best.cost:.2f} instead of {plans[0].cost:.2f}"
        return text
    fastest = min(plans, key=lambda plan: plan.step.total_s)
    if prices is not None and fastest.speedup >= 1 + NOTICEABLE:
        return (
            f"keep the ring: {fastest.reducers} reducers make steps {fastest.speedup:.2f} times as fast, but cost "
            f"more than that; they pay below {fastest.price_limit or 0:.2f} of a worker's price"
        )
    if plans[0].step.exposed_s < NOTICEABLE * plans[0].step.total_s:
        return "keep the ring: steps hardly wait for the network"
    if training.workers == 2:
        return "keep the ring: with two workers it sends every byte once, as reducers do"
    return f"keep the ring: no number of reducers makes steps shorter; the sums are bound by {fastest.step.bound}"


def _doubts(training: Training) -> list[str]:
    doubts = []
    if training.round_trip_s > LONG_PATH_S:
        doubts.append(
            f"a round trip of {training.round_trip_s * 1e3:g} ms is long: both ways will take longer than predicted"
        )
    bucket = min(training.bucket_bytes, training.gradient_bytes)
    if bucket < SMALL_SUM_BYTES:
        doubts.append(
            f"buckets of {bucket / 2**20:.2g} MiB are small: messages will cost more time than predicted"
        )
    return doubts
