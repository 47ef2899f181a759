"""Faults of a world of elastic jobs: most of the faults of other jobs, and those that only elastic jobs survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.faults import KINDS as SHARED
from simulation.faults import Fault

if TYPE_CHECKING:
    from simulation.elastic.job import ElasticJob
    from simulation.elastic.world import ElasticWorld


def _job(world: ElasticWorld, fault: Fault) -> ElasticJob:
    return world.jobs[fault.first % len(world.jobs)]


def _kill_worker(world: ElasticWorld, fault: Fault) -> None:
    living = _job(world, fault).living
    if living:
        _job(world, fault).kill(living[fault.second % len(living)].rank)


def _kill_many(world: ElasticWorld, fault: Fault) -> None:
    """Kill half of the living workers at the same time."""
    job = _job(world, fault)
    for worker in job.living[fault.second % 2 :: 2]:
        job.kill(worker.rank)


def _newcomers(world: ElasticWorld, fault: Fault) -> None:
    """Start newcomers, together or one after another, most of which leave after a few steps."""
    job = _job(world, fault)
    count = 1 + fault.second % 12 if fault.much > 0.8 else 1 + fault.second % 3
    random = world.network.random
    world.note("newcomers", [], 0.0)
    for index in range(count):
        steps = random.choice([1, 5, 20, 1 << 30])
        job.start_later(
            10 + (fault.second + index) % 20, random.choice([0.0, 3.0]) * random.random(), steps=steps
        )


def _twin(world: ElasticWorld, fault: Fault) -> None:
    """Start another process with the rank of a living one."""
    job = _job(world, fault)
    if job.living:
        rank = job.living[fault.second % len(job.living)].rank
        world.note("twin", [job.host(rank)], 0.0)
        job.start_later(rank, 0.0, host="stranger", is_twin=True)


def _ambush(world: ElasticWorld, fault: Fault) -> None:
    """Kill a worker, or break a connection, at the moment when newcomers are admitted."""
    kind = "kill worker" if fault.first % 3 else "reset"
    world.note("ambush", [], 0.0)
    world.ambushes["newcomers"].append(_striking(world, fault, kind, 0.05))
    _newcomers(world, fault)


def _half_summed(world: ElasticWorld, fault: Fault) -> None:
    """Kill a worker, or half of them, when one worker has a result that others may not have yet."""
    kind = "kill worker" if fault.first % 4 else "kill many"
    world.note("half summed", [], 0.0)
    world.ambushes["result"].append(_striking(world, fault, kind, 0.004))


def _striking(world: ElasticWorld, fault: Fault, kind: str, within_s: float) -> Callable[[], None]:
    """Return a function that makes a fault of the given kind happen a moment after its call."""

    def strike() -> None:
        at = world.network.clock.now + within_s * fault.much**2
        world.network.clock.at(at, lambda: world.strike(Fault(at, kind, 0, fault.second, fault.much)))

    return strike


def _stranger(world: ElasticWorld, fault: Fault) -> None:
    """Start a worker with another model."""
    world.note("other model", [], 0.0)
    _job(world, fault).start_later(40 + fault.second % 3, 0.0, variant=1)


KINDS: dict[str, Callable[..., None]] = {
    kind: SHARED[kind]
    for kind in (
        "kill reducer",
        "silent reducer",
        "drain",
        "refuse",
        "no memory",
        "freeze",
        "cut",
        "half cut",
        "isolate",
        "slow",
        "clog",
        "reset",
    )
} | {
    "kill worker": _kill_worker,
    "kill many": _kill_many,
    "newcomers": _newcomers,
    "twin": _twin,
    "other model": _stranger,
    "ambush": _ambush,
    "half summed": _half_summed,
}
