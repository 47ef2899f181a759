"""The report and the forecast: 80 columns, and the planner's numbers for the measured links."""

from dataclasses import replace

import pytest
from support.fakes.doctor_facts import RATE, healthy, reducer, worker

from reducer.doctor.facts import Rate
from reducer.doctor.judge import judge
from reducer.doctor.model import Model, forecast
from reducer.doctor.text import print_report
from reducer.planner.advice import Prices
from reducer.planner.formulas import OVERHEAD

MODEL = Model(workers=4, gradient_bytes=1e9, compute_s=0.0, bucket_bytes=25 << 20)


def report(facts, capsys, model=None) -> str:
    """Return the report as one line of words."""
    print_report(facts, judge(facts), None if model is None else forecast(facts, model))
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    return " ".join(output.split())


def test_a_healthy_cluster(capsys):
    text = report(healthy(), capsys)
    assert text.startswith(
        "addresses 4 workers, 2 reducers (2 processes) of dns reach 2 of 2 processes can be used"
    )
    assert "eth0 (1000 Mbit/s), mss 1448, rtt 0.1 ms" in text
    assert "clocks within 0.1 ms" in text
    assert "each way 800 Mbit/s per worker, 800 Mbit/s per reducer" in text
    assert "all workers to one reducer: 800 Mbit/s" in text
    assert "all to all, as in a step: 400 Mbit/s" in text
    assert text.endswith("good: nothing to fix")
    assert "host-0, 1 reducer (1 process) of dns" in report(healthy(1, 1), capsys)


def test_long_names_are_wrapped(capsys):
    trouble = "its certificate is not accepted here: " + "a-very-long-name.of.a.host " * 9
    facts = healthy(1, 1)
    facts = replace(
        facts, workers=[worker(0, reducers=[reducer(0, trouble=trouble, path=None)])], alone=[], together=[]
    )
    text = report(facts, capsys)
    assert "BROKEN reach: 10.0.1.0:50051 from host-0: its certificate" in text
    assert "it does not work fix first: 10.0.1.0:50051 from host-0: give both sides certificates" in text


@pytest.mark.parametrize(
    ("reducers", "text"),
    [
        (
            [reducer(0), reducer(1, is_near=True)],
            "2 of 2 processes can be used; jobs use shared memory and tcp",
        ),
        # With TLS nothing is shared.
        (
            [reducer(0, is_near=True, plane="tcp with TLS")],
            "1 of 1 processes can be used; jobs use tcp with TLS",
        ),
    ],
)
def test_reducers_of_this_host_share_memory_with_jobs(capsys, reducers, text):
    near = replace(healthy(1, len(reducers)), workers=[worker(0, reducers=reducers)])
    assert text in report(near, capsys)


def test_effects_of_a_busy_host_are_listed_below_it(capsys):
    facts = healthy(4, 4)
    alone = [replace(rate, bytes_per_s=RATE / 2) if rate.rank == 1 else rate for rate in facts.alone]
    busy = [worker(rank, 4, host={"busy_cores": 8.0} if rank == 1 else {}) for rank in range(4)]
    text = report(replace(facts, alone=alone, workers=busy), capsys)
    assert (
        "SLOW cpu: rank 1 (host-1): other programs keep 8 of 8 cores busy -> find out which programs keep the cores "
        "busy, and measure again when they are done this may be the reason for the following: - the link of rank 1 "
        "(host-1): it carries 400 Mbit/s, while other workers' links carry 800 Mbit/s it works, but slowly"
    ) in text
    assert text.endswith(
        "fix first: rank 1 (host-1): find out which programs keep the cores busy, and measure again when they are done"
    )


def test_the_ring_is_shown_beside_all_to_all(capsys):
    assert "Gloo's ring 640 Mbit/s" in report(
        healthy(ring=[Rate(rank=0, reducer="", bytes_per_s=0.8 * RATE)]), capsys
    )


def test_the_forecast_uses_the_measured_rates():
    predicted = forecast(healthy(4, 4), MODEL)
    assert predicted.training.worker_mbit == pytest.approx(800 * OVERHEAD)
    assert predicted.training.reducer_mbit == pytest.approx(800 * OVERHEAD)
    assert predicted.now.total_s == pytest.approx(1e9 / RATE, rel=0.01)
    assert predicted.slowest_costs_s == 0.0
    assert {plan.reducers for plan in predicted.advice.plans} >= {None, 0, 4}
    # Half as many reducers as workers: together they receive at half the rate.
    assert forecast(healthy(4, 2), MODEL).now.total_s == pytest.approx(2e9 / RATE, rel=0.01)


def test_there_is_no_forecast_without_rates():
    assert forecast(healthy(alone=[], incast=[], together=[]), MODEL) is None


def test_the_cost_of_the_slowest_link(capsys):
    facts = healthy(4, 4)
    alone = [
        replace(rate, bytes_per_s=rate.bytes_per_s / 2) if rate.rank == 1 else rate for rate in facts.alone
    ]
    together = [replace(rate, bytes_per_s=RATE / 2) for rate in facts.together]
    facts = replace(facts, alone=alone, together=together)
    predicted = forecast(facts, MODEL)
    assert predicted.slowest_costs_s == pytest.approx(1e9 / RATE, rel=0.01)
    text = report(facts, capsys, MODEL)
    assert "fix first: the link of rank 1 (host-1)" in text
    assert text.endswith("the slowest link costs 10000 ms of each step")
    prices = Prices(worker=2.0, reducer=1.0)
    assert "the slowest link costs 10000 ms of each step, or 33.33 for 1000 steps" in report(
        facts, capsys, replace(MODEL, prices=prices)
    )


def test_one_host_cannot_tell_the_current_step_time_or_its_cost(capsys):
    priced = replace(MODEL, prices=Prices(worker=2.0, reducer=1.0))
    predicted = forecast(healthy(1, 2), priced)
    assert (predicted.now, predicted.now_cost) == (None, None)
    assert predicted.training.workers == 4
    assert predicted.advice.best.cost is not None
    assert "the price is" not in report(healthy(1, 2), capsys, priced)
