"""The shares and losses of two concurrent jobs."""

from __future__ import annotations

import pytest

from benchmarks.lab.cluster import Shape
from benchmarks.lab.traffic import Link
from benchmarks.method.experiment import table
from benchmarks.shaped.jobs import COLUMNS, Round, rows_of


def test_jobs_that_share_evenly_lose_nothing() -> None:
    round_ = Round(alone=[1.0, 1.0], both=[2.0, 2.0])
    assert (round_.part, round_.lost) == (1.0, 0.0)


def test_the_slower_job_is_judged_by_its_progress_when_the_other_finished() -> None:
    # Alone in the last 0.7 s, the slower job reduced 0.7 of its tensor.
    round_ = Round(alone=[1.0, 1.0], both=[1.5, 2.2])
    assert round_.part == pytest.approx(0.3)
    assert round_.lost == pytest.approx(0.1)


def test_the_table_has_medians_and_quartiles() -> None:
    shape = Shape(workers=2, reducers=2, link=Link(rate_mbit=500))
    rounds = [Round([1.0, 1.0], [2.0, last]) for last in (2.0, 2.2, 2.4)]
    row = table(COLUMNS, rows_of(shape, {"ring": rounds}))[-1]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["500 Mbit/s, 1 ms", "ring", "1.00 (1.00-1.00)", "0.80 (0.70-0.90)", "10.0% (5.0%-15.0%)"]
