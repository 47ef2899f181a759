"""Elastic jobs under simulated faults: fixed seeds, seeds that once found an error, and new ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from simulation.elastic.faults import KINDS
from simulation.elastic.world import simulate
from simulation.faults import Fault
from simulation.shorter import shortest
from simulation.world import Outcome

#: Seconds during which new runs are started.
NEW_S = 8.0


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """Suppress the workers' logs, which nobody reads."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_right(outcome: Outcome) -> None:
    shown = f"seed {outcome.seed}: {outcome.violations[:3]}"
    assert not outcome.violations, f"{shown}, after {shortest(outcome, simulate)}"


#: Runs that failed in the past; docs/decisions/simulation.md describes what they found.
FOUND = [
    (504, ""),
    (9001, "kill reducer,kill worker,silent reducer,drain"),
    pytest.param(500003, "", marks=pytest.mark.full),  # takes as long as ten others
    (8000048, ""),
    (7000212, ""),
]


@pytest.mark.parametrize(("seed", "kinds"), [*((seed, "") for seed in range(12)), *FOUND])
def test_fixed_seeds(seed: int, kinds: str) -> None:
    assert_right(simulate(seed, kinds=kinds.split(",") if kinds else ()))


def test_new_seeds() -> None:
    seed, begun = int(time.time() * 1000), time.monotonic()
    while time.monotonic() < begun + NEW_S:
        assert_right(simulate(seed))
        seed += 1


def test_a_seed_determines_the_run() -> None:
    plan = [Fault(2.0, "newcomers", 0, 2, 0.5), Fault(4.0, "kill worker", 0, 1, 0.5)]
    assert simulate(3, plan).history == simulate(3, plan).history


def test_a_worker_dies_and_another_one_joins() -> None:
    """Check the simplest case: the other workers continue, and the newcomer has their state."""
    plan = [Fault(1.0, "kill worker", 0, 1, 0.5), Fault(3.0, "newcomers", 0, 0, 0.5)]
    outcome = simulate(6, plan)
    assert_right(outcome)
    assert any(record["what"] == "joined" and record["newcomers"] for record in outcome.history)


@pytest.mark.parametrize("seed", [0, 9])  # three reducers and one
def test_a_worker_dies_unseen_by_any_reducer(seed: int) -> None:
    """Kill all reducers with the worker, so that only its replacement process tells the others."""
    at = 40.0
    dead = [Fault(at + number / 1000, "kill reducer", number, 0, 0.5) for number in range(3)]
    outcome = simulate(seed, [*dead, Fault(at + 0.01, "kill worker", 0, 1, 0.2)])
    assert_right(outcome)
    assert [record for record in outcome.history if record["what"] == "killed"]
    later = [
        record["t"] for record in outcome.history if record["what"] == "state" and record["t"] > at + 1.0
    ]
    assert later[0] < at + 30.0


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_happens(kind: str) -> None:
    plan = [Fault(0.5 + number, kind, 7 * number, 5 * number, 0.5) for number in range(4)]
    assert simulate(1, plan).happened
