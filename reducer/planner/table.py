"""Print the predictions of `reducer plan` in 80 columns."""

from __future__ import annotations

from rich.table import Column, Table

from reducer.observe.tables import make_console
from reducer.planner.advice import Advice, Plan
from reducer.planner.formulas import Training
from reducer.resources.sizes import size_text


def print_advice(training: Training, advice: Advice) -> None:
    """Print the table of all plans, the one to choose, and the limits of the prediction."""
    console = make_console(None)
    console.print(
        f"{training.workers} workers, {size_text(training.gradient_bytes)} of gradients per step, "
        f"{training.compute_s * 1e3:g} ms of computing"
    )
    titles = ["sums, ms", "exposed, ms", "step, ms", "x ring", "bound by"]
    prices = advice.prices
    titles += [] if prices is None else [f"{prices.steps} steps cost"]
    titles += ["pays below"]
    table = Table(
        "reducers", *(Column(title, justify="right") for title in titles), box=None, padding=(0, 1, 0, 0)
    )
    for plan in advice.plans:
        table.add_row(*_cells(plan, has_cost=prices is not None))
    console.print(table)
    console.print(advice.reason)
    for doubt in advice.doubts:
        console.print(f"note: {doubt}")


def _cells(plan: Plan, *, has_cost: bool) -> list[str]:
    cells = ["ring" if plan.reducers is None else str(plan.reducers)]
    cells += [
        milliseconds(seconds)
        for seconds in (plan.step.communication_s, plan.step.exposed_s, plan.step.total_s)
    ]
    cells += [f"{plan.speedup:.2f}", plan.step.bound]
    cells += [f"{plan.cost:.2f}"] if has_cost else []
    return [*cells, "" if plan.price_limit is None else f"{max(plan.price_limit, 0):.2f}"]


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with three digits."""
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
