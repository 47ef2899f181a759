"""Jobs under simulated faults, with fixed seeds and new ones. Errors that they have found have their own tests."""

from __future__ import annotations

import time

import pytest
from simulation.faults import KINDS, Fault
from simulation.shorter import shortest
from simulation.world import Outcome, simulate

#: Seconds during which new runs are started.
NEW_S = 8.0


def assert_right(outcome: Outcome) -> None:
    assert not outcome.violations, f"seed {outcome.seed}: {outcome.violations[:3]}, after {shortest(outcome)}"


@pytest.mark.parametrize("seed", range(40))
def test_fixed_seeds(seed: int) -> None:
    assert_right(simulate(seed))


def test_new_seeds() -> None:
    seed, begun = int(time.time() * 1000), time.monotonic()
    while time.monotonic() < begun + NEW_S:
        assert_right(simulate(seed))
        seed += 1


def test_a_seed_determines_the_run() -> None:
    assert simulate(3).history == simulate(3).history


@pytest.mark.parametrize(("seed", "at"), [(9, 3.0), (18, 5.0)])
def test_a_rank_that_quits_while_all_reducers_are_down_is_awaited_like_a_late_one(
    seed: int, at: float
) -> None:
    gone = [Fault(at + number / 1000, "kill server", number, 0, 0.5) for number in range(4)]
    outcome = simulate(seed, [Fault(at - 0.2, "quit", 0, 1, 0.5), *gone])
    assert_right(outcome)
    [quit_at] = [record["t"] for record in outcome.history if record["what"] == "quit"]
    assert quit_at > at
    failures = [record for record in outcome.history if record["what"] == "failed"]
    assert {record["error"] for record in failures} == {"CollectiveTimeout"}
    assert all(record["t"] > quit_at + 110 for record in failures)  # timeout_s is 120


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_happens(kind: str) -> None:
    plan = [Fault(1.0 + number, kind, 7 * number, 5 * number, 0.5) for number in range(6)]
    assert any(simulate(seed, plan).happened for seed in range(5))
