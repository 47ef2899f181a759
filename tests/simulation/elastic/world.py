"""A world of elastic jobs. The seed determines the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from history.elastic import violations
from reduction.model import NOWHERE
from simulation import faults as shared
from simulation.elastic import faults
from simulation.elastic.job import ElasticJob, Shape
from simulation.elastic.substitutes import simulated
from simulation.elastic.wires import LobbyReducer
from simulation.faults import Fault
from simulation.network import Network, Process
from simulation.servers import Server
from simulation.world import FAULTS_S, Outcome, Record, World

#: Memory of each reducer: ending generations overlap with the next ones for some seconds, with up to 30 workers each.
MEMORY_BYTES = 1 << 30
#: Seconds after the last change during which a reducer may know of generations besides the one that trains.
CHANGE_S = 20.0


class ElasticWorld(World):
    """The whole of one run; see `World`."""

    jobs: list[ElasticJob]
    judge = staticmethod(violations)
    # A reducer may be frozen for 15 s, and forgets disconnected workers 10 s later.
    SETTLE_S = 30.0

    def __init__(self, seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> None:
        random = Random(f"{seed}/elastic")
        self.seed = seed
        self.network = Network(Random(f"{seed}/network"))
        self.history: list[Record] = []
        #: Called as soon as workers change to a generation with newcomers, or one of them has a result.
        self.ambushes: dict[str, list[Callable[[], None]]] = {"newcomers": [], "result": []}
        self._is_colocated = False
        self._mbits = ()
        self.servers = [
            Server(self.network, f"reducer-{index}", 1, NOWHERE, self.record, LobbyReducer, MEMORY_BYTES)
            for index in range(random.choice([1, 2, 2, 3]))
        ]
        self.unnamed_until = {}
        self._faulty_until = self.clogged_until = self._changed_at = 0.0
        self.is_calm = False
        self.stranger = Process(self.network, "stranger")
        self.jobs = [self._elastic_job(random, "a")]
        count = round(random.expovariate(1 / 12))
        drawn = list(kinds or faults.KINDS)
        self.plan = list(plan) if plan is not None else shared.plan(random, count, FAULTS_S, drawn)
        for fault in self.plan:
            self.network.clock.at(fault.at, lambda fault=fault: self.strike(fault))
        self.network.clock.at(0.0, self._check_settled)
        for job in self.jobs:
            job.start([random.choice([0.0, 0.2, 8.0]) * random.random() for _ in range(job.shape.ranks)])

    def _elastic_job(self, random: Random, name: str) -> ElasticJob:
        steps, think_s = random.choice(
            [(3, 1.0), (20, 0.3), (60, 0.3), (60, 0.8), (90, 0.5), (200, 0.05), (200, 0.1)]
        )
        shape = Shape(name, random.choice([1, 2, 3, 3, 4, 5]), steps, think_s)
        return ElasticJob(self.network, random, shape, self.named(), self.record)

    def strike(self, fault: Fault) -> None:
        """Make a fault happen."""
        if not self.is_calm:
            faults.KINDS[fault.kind](self, fault)

    def record(self, what: str, **fields: Any) -> None:
        super().record(what, **fields)
        if what not in ("issued", "result", "state"):  # everything except progress of the training
            self._changed_at = self.network.clock.now
        moment = "newcomers" if what == "joined" and fields["newcomers"] else what
        if self.ambushes.get(moment):
            self.ambushes[moment].pop()()

    def _check_settled(self) -> None:
        """Record the remains of generations and transfers at reducers once nothing has changed for a while."""
        now = self.network.clock.now
        self.network.clock.at(now + 0.5, self._check_settled)
        is_quiet = now > max(self._changed_at, self._faulty_until) + CHANGE_S
        if not is_quiet or any(fault.kind == "twin" for fault in self.plan):
            return
        for reducer in self.reducers:
            if reducer.is_alive and len(names := list(reducer.engine.jobs.by_name)) > len(self.jobs):
                self.record("left", text=f"{reducer.address} still knows of {names} at {now:.1f}")

    def run(self) -> Outcome:
        outcome = super().run()
        programs: list[Any] = [*self.reducers, *(worker for job in self.jobs for worker in job.ranks)]
        for program in programs:
            outcome.violations += program.failures
            program.kill()
        return outcome


def simulate(seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> Outcome:
    """Run the world of a seed."""
    with simulated():
        return ElasticWorld(seed, plan, kinds).run()
