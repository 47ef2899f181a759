"""Predictions of `reducer plan`: limits that are known exactly, directions, and measured values."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.planned import planned
from reducer.planner.formulas import (
    LATENCY_S,
    OVERHEAD,
    Training,
    reducer_step,
    reducers_for_full_gain,
    ring_step,
)

MEASURED = Path(__file__).parents[4] / "docs" / "measured" / "shaped"
SLOW = Training(workers=4, gradient_bytes=64e6, worker_mbit=100, reducer_mbit=100, reducer_cores=8)
#: Seconds that a link of SLOW takes to carry all gradients once.
ONCE_S = 64e6 * 8 * OVERHEAD / 100e6

trainings = st.builds(
    Training,
    workers=st.integers(2, 40),
    gradient_bytes=st.floats(1e3, 1e11),
    worker_mbit=st.floats(1, 4e5),
    reducer_mbit=st.floats(1, 4e5),
    reducer_cores=st.integers(1, 64),
    compute_s=st.floats(0, 10),
    bucket_bytes=st.floats(1e7, 1e9),
    round_trip_s=st.floats(0, 0.1),
)


@pytest.mark.parametrize("workers", [2, 4, 8, 64])
def test_equal_links_without_computation_follow_the_textbook_formulas(workers):
    training = replace(SLOW, workers=workers)
    assert ring_step(training).total_s == pytest.approx(2 * (workers - 1) / workers * ONCE_S)
    assert reducer_step(training, workers).total_s == pytest.approx(ONCE_S + LATENCY_S)
    assert reducer_step(training, 0).total_s == pytest.approx(ring_step(training).total_s + LATENCY_S)
    assert reducers_for_full_gain(training) == workers


def test_computation_hides_what_is_sent_before_it_ends():
    training = replace(SLOW, compute_s=30.0, bucket_bytes=16e6)
    step = ring_step(training)
    assert step.exposed_s == pytest.approx(step.communication_s / 4)  # the last of four buckets
    assert step.total_s == pytest.approx(30.0 + step.exposed_s)


def test_each_bound_is_named():
    fast = replace(SLOW, worker_mbit=100_000, reducer_mbit=100_000)
    assert reducer_step(SLOW, 4).bound == "links"
    assert reducer_step(fast, 4).bound == "a rank's CPU"
    assert reducer_step(replace(fast, ranks_per_worker=16), 4).bound == "links"
    assert reducer_step(replace(fast, ranks_per_worker=64, reducer_cores=1), 4).bound == "the reducers' CPU"


def test_slower_reducers_are_needed_in_greater_numbers():
    assert reducers_for_full_gain(replace(SLOW, reducer_mbit=33)) == 13
    # A core receives at most 2 GB/s.
    assert reducers_for_full_gain(replace(SLOW, worker_mbit=64_000, reducer_mbit=1e6, reducer_cores=1)) == 16


@given(trainings, st.integers(0, 60))
def test_one_more_reducer_and_faster_links_never_make_it_slower(training, count):
    step = reducer_step(training, count)
    cpu = {"a rank's CPU", "the reducers' CPU"}
    more = reducer_step(training, count + 1)
    assert more.total_s <= step.total_s * (1 + 1e-9) or more.bound in cpu
    faster = replace(training, worker_mbit=2 * training.worker_mbit, reducer_mbit=2 * training.reducer_mbit)
    assert reducer_step(faster, count).total_s <= step.total_s * (1 + 1e-9)
    assert ring_step(faster).total_s <= ring_step(training).total_s
    assert 0 <= step.exposed_s <= step.communication_s * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["few-reducers", "sizes-4", "vgg16-4", "vgg16-8", "resnet50-4", "resnet50-8"]
)
def test_measurements_are_predicted_within_12_percent(name):
    rows = json.loads((MEASURED / f"{name}.json").read_text())["rows"]
    compared = 0
    for row in (row for row in rows if row["size_bytes"] >= 4 << 20):
        contenders = row["contenders"]
        ring, step = planned(row)
        ours = contenders["colocated" if "colocated" in contenders else "tcp"]
        assert ring.total_s == pytest.approx(contenders["ring"]["p50_s"], rel=0.12)
        assert step.total_s == pytest.approx(ours["p50_s"], rel=0.12)
        compared += 1
    assert compared
