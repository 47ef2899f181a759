"""The planner's input from the measurements: a training step over these links. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from reducer.doctor.bandwidth import usual
from reducer.doctor.facts import Facts
from reducer.doctor.findings import best_by, sums_by_reducer
from reducer.planner.advice import Advice, Prices, advise, usual_counts
from reducer.planner.formulas import OVERHEAD, Step, Training, measured_step, reducer_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The user's description of the training."""

    workers: int
    gradient_bytes: float
    compute_s: float
    bucket_bytes: float
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps over the measured links."""

    training: Training
    #: A step with the present reducers at the all-to-all rate; None if not all workers measured that.
    now: Step | None
    advice: Advice
    #: Cost of the steps of `now`; None without prices, or without `now`.
    now_cost: float | None
    #: Seconds that the slowest worker's link costs each step, compared with the usual link.
    slowest_costs_s: float
    #: The price of that time for `Prices.steps` steps; None without prices.
    slowest_cost: float | None


def forecast(facts: Facts, model: Model) -> Forecast | None:
    """Return the planner's forecast for the measured rates; None if none were measured."""
    of_worker = best_by([*facts.alone, *facts.together], "rank")
    if not of_worker or not min(of_worker.values()):
        return None
    reducers = {
        reducer.given for worker in facts.workers for reducer in worker.reducers if not reducer.trouble
    }
    training = _training(facts, model, min(of_worker.values()), len(reducers))
    whole = len(facts.together) == model.workers and all(rate.bytes_per_s for rate in facts.together)
    now = now_cost = slowest_cost = None
    if whole:
        now = measured_step(training, 1 / min(rate.bytes_per_s for rate in facts.together))
    better = _training(facts, model, usual(of_worker.values()), len(reducers))
    lost_s = reducer_step(training, len(reducers)).total_s - reducer_step(better, len(reducers)).total_s
    lost_s = max(0.0, lost_s)
    prices = model.prices
    if prices is not None:
        now_cost = None if now is None else prices.cost(model.workers, len(reducers), now.total_s)
        slowest_cost = prices.cost(model.workers, len(reducers), lost_s)
    advice = advise(training, [*usual_counts(training), len(reducers)], prices)
    return Forecast(training, now, advice, now_cost, lost_s, slowest_cost)


def _training(facts: Facts, model: Model, worker_rate: float, reducers: int) -> Training:
    processes = sum(not reducer.trouble for reducer in facts.workers[0].reducers)
    paths = [
        reducer.path for worker in facts.workers for reducer in worker.reducers if reducer.path is not None
    ]
    return Training(
        workers=model.workers,
        gradient_bytes=model.gradient_bytes,
        worker_mbit=_mbit(worker_rate),
        reducer_mbit=_mbit(_reducer_rate(facts)),
        reducer_cores=max(1, processes // max(1, reducers)),
        compute_s=model.compute_s,
        bucket_bytes=model.bucket_bytes,
        round_trip_s=max((path.rtt_s for path in paths), default=0.0),
    )


def _reducer_rate(facts: Facts) -> float:
    """Return the slowest reducer's receive rate from all workers together, or from one if only that was measured."""
    alone = best_by(facts.alone, "reducer")
    if facts.incast:
        return min(sums_by_reducer(facts.incast).values())
    return min(alone.values()) if alone else min(rate.bytes_per_s for rate in facts.together)


def _mbit(bytes_per_s: float) -> float:
    """Return the rate in Mbit/s of a link that carries this many bytes of payload per second."""
    return bytes_per_s * 8 / 1e6 * OVERHEAD
