"""A world of elastic jobs. One seed is one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from history.elastic import violations
from simulation import faults as shared
from simulation.elastic import faults
from simulation.elastic.job import ElasticJob, Shape
from simulation.elastic.substitutes import simulated
from simulation.elastic.threads import Program
from simulation.elastic.wires import LobbyReducer
from simulation.faults import Fault
from simulation.network import Network, Process
from simulation.world import FAULTS_S, Outcome, Record, World

#: Of each reducer: generations that end are there for some seconds beside the next ones, with up to 30 workers each.
MEMORY_BYTES = 1 << 30


class ElasticWorld(World):
    """Everything of one run; see `World`."""

    jobs: list[ElasticJob]
    judge = staticmethod(violations)

    def __init__(self, seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> None:
        random = Random(f"{seed}/elastic")
        self.seed = seed
        self.network = Network(Random(f"{seed}/network"))
        self.history: list[Record] = []
        self._is_colocated = False
        self.addresses = [f"reducer-{index}:50051" for index in range(random.choice([1, 2, 2, 3]))]
        self._lives: Counter[str] = Counter(self.addresses)
        self.reducers = [self._reducer(address, 1) for address in self.addresses]
        self._waiting: set[int] = set()
        self.is_calm = False
        self.stranger = Process(self.network, "stranger")
        self.jobs = [self._elastic_job(random, "a")]
        count = round(random.expovariate(1 / 8))
        drawn = list(kinds or faults.KINDS)
        self.plan = list(plan) if plan is not None else shared.plan(random, count, FAULTS_S, drawn)
        for fault in self.plan:
            self.network.clock.at(fault.at, lambda fault=fault: self._strike(fault))
        for job in self.jobs:
            job.start([random.choice([0.0, 0.2, 8.0]) * random.random() for _ in range(job.shape.ranks)])

    def _elastic_job(self, random: Random, name: str) -> ElasticJob:
        shape = Shape(
            name, random.choice([1, 2, 3, 3, 4, 5]), random.choice([3, 20, 60]), random.choice([0.05, 0.3, 1.0])
        )
        return ElasticJob(self.network, random, shape, tuple(self.addresses), self.record)

    def _reducer(self, address: str, life: int) -> LobbyReducer:
        return LobbyReducer(self.network, address, life, MEMORY_BYTES)

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            faults.KINDS[fault.kind](self, fault)

    def has_checksums(self, *processes: Process) -> bool:
        """Whether damage would be noticed; a fault of elastic worlds that there is none of yet."""
        return False

    def run(self) -> Outcome:
        with simulated():
            outcome = super().run()
            programs: list[Program] = [*self.reducers, *(worker for job in self.jobs for worker in job.ranks)]
            for program in programs:
                outcome.violations += program.failures
                program.kill()
        return outcome


def simulate(seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> Outcome:
    """Run the world of a seed."""
    with simulated():
        world = ElasticWorld(seed, plan, kinds)
    return world.run()
