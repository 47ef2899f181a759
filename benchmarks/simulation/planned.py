"""Predictions of `reducer plan` for a row of results measured on shaped links."""

from __future__ import annotations

from typing import Any

from reducer.planner.formulas import Step, Training, reducer_step, ring_step


def planned(row: dict[str, Any]) -> tuple[Step, Step]:
    """Return the predicted step with a ring, and with the row's reducers.

    The computing time is that of the contender without communication. Without one, the row is a plain all-reduce.
    """
    rate = row["network"]["rate_mbit"]
    training = Training(
        workers=row["workers"],
        gradient_bytes=row["size_bytes"],
        worker_mbit=rate,
        reducer_mbit=rate,
        reducer_cores=8,
        compute_s=row["contenders"].get("noop", {"p50_s": 0.0})["p50_s"],
    )
    return ring_step(training), reducer_step(training, row["reducers"])
