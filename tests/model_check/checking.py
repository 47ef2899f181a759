"""Explores a world and asserts what must hold in every state."""

from __future__ import annotations

from model_check.explorer import explore
from model_check.world import World

SECONDS_MAX = 1200


def check(
    world: World,
    states_max: int | None = None,
    *,
    is_settled: bool = True,
    after: tuple[str, ...] = (),
    **faults: int,
) -> None:
    """Visit everything reachable after all ranks have joined, or before any has, and after the steps of `after`."""
    start = world.settled(**faults) if is_settled else world.start(**faults)
    start = world.after(start, *after)
    report = explore(
        start, world.successors, world.is_goal, states_max=states_max or 10**9, seconds_max=SECONDS_MAX
    )
    print(f"{report.states} states, {report.goals} ends, {report.seconds:.0f} s")
    assert report.violation is None, "\n".join((report.violation[0], *report.violation[1]))
    assert report.stuck is None, "\n".join(("nobody can go on after", *report.stuck[1]))
    assert report.goals > 0
    assert report.is_complete or states_max is not None, "ran out of time"
