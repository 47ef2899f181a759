"""A world: jobs and reducers on hosts, and all that happens to them. One seed is one run."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from history.checker import violations
from simulation import faults
from simulation.faults import Fault
from simulation.job import Job, Shape
from simulation.network import Network, Process
from simulation.rank import SimRank
from simulation.reducer import SimReducer

#: Faults come in this time, in seconds, and after that all must come to its end in that time.
FAULTS_S, CALM_S = 60.0, 240.0
MEMORY_BYTES = 64 << 20
Record = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    seed: int
    faults: list[Fault]
    violations: list[str]
    history: list[Record]
    #: Seconds that were simulated.
    seconds: float
    happened: Counter[str] = field(default_factory=Counter)


class World:
    """Everything of one run.

    Args:
        seed: of what the world is like.
        plan: the faults; None for those of the seed.
        kinds: those that the seed may choose from.
    """

    #: Of `tests/history`.
    judge = staticmethod(violations)
    #: How long after the end of all jobs nothing may be left of them.
    SETTLE_S = 15.0

    def __init__(self, seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> None:
        random = Random(f"{seed}/world")
        self.seed = seed
        self.network = Network(Random(f"{seed}/network"))
        self.history: list[Record] = []
        reducers = random.choice([1, 2, 2, 3, 4])
        self._is_colocated = random.random() < 0.2
        first = [f"a-{index}" for index in range(reducers)] if self._is_colocated else []
        hosts = first or [f"reducer-{index}" for index in range(reducers)]
        #: Where the reducers are, of which some may be away.
        self.addresses = [f"{host}:50051" for host in hosts]
        self._lives = Counter(self.addresses)
        self.reducers = [self._reducer(address, 1) for address in self.addresses]
        self._waiting: set[int] = set()
        #: Whether no fault comes any more.
        self.is_calm = False
        self.stranger = Process(self.network, "stranger")
        names = ["a", "b"] if random.random() < 0.4 else ["a"]
        self.jobs = [
            self._job(
                random, name, max(2, reducers) if self._is_colocated else random.choice([1, 2, 3, 4, 5])
            )
            for name in names
        ]
        count = round(random.expovariate(1 / 12))
        self.plan = (
            list(plan)
            if plan is not None
            else faults.plan(random, count, FAULTS_S, list(kinds or faults.KINDS))
        )
        for fault in self.plan:
            self.network.clock.at(fault.at, lambda fault=fault: self._strike(fault))
        for job in self.jobs:
            job.start([random.choice([0.0, 0.2, 8.0]) * random.random() for _ in range(job.shape.ranks)])

    def _job(self, random: Random, name: str, ranks: int) -> Job:
        shape = Shape(
            name=name,
            ranks=ranks,
            collectives=random.choice([1, 20, 100]),
            depth=random.choice([1, 2, 8]),
            think_s=random.choice([0.01, 0.1, 0.8]),
            checksums=random.random() < 0.5,
            chunk_bytes=random.choice([None, 1024, 1024, 4096]),
            credit_bytes=random.choice([None, 4096, 16384]),
            drifts=tuple(random.choice([1.0, 1.0, 0.97, 1.03]) for _ in range(ranks)),
            colocated=self._is_colocated,
        )
        return Job(self.network, f"{self.seed}/{name}", shape, lambda: tuple(self.addresses), self.record)

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            faults.strike(self, fault)

    # ---- what faults need ----

    def record(self, what: str, **fields: Any) -> None:
        """Add a record to the history."""
        self.history.append({"what": what, "t": self.network.clock.now, **fields})

    def note(self, kind: str, hosts: Sequence[str], seconds: float) -> None:
        """Record a fault."""
        self.record("fault", kind=kind, hosts=list(hosts), seconds=seconds)

    def host_of(self, index: int) -> str:
        """Return the host of a reducer."""
        return self.addresses[index].partition(":")[0]

    def processes(self) -> list[Process]:
        """Return all processes that live."""
        ranks: list[Process] = [rank for job in self.jobs for rank in job.ranks]
        return [process for process in (*self.reducers, *ranks) if process.is_alive]

    def process(self, number: int) -> Process:
        """Return one of the processes that live."""
        known = self.processes() or [self.stranger]
        return known[number % len(known)]

    def path(self, fault: Fault) -> tuple[str, str]:
        """Return the hosts of a reducer and of a rank."""
        job = self.jobs[fault.second % len(self.jobs)]
        return self.host_of(fault.first % len(self.addresses)), job.host(fault.second // 7 % job.shape.ranks)

    def isolate(self, host: str, seconds: float) -> None:
        """Cut all paths of a host."""
        for other in sorted({process.host for process in self.processes()} - {host}):
            self.network.cut(host, other, seconds)
            self.network.cut(other, host, seconds)

    def has_checksums(self, *processes: Process) -> bool:
        """Whether the job of one of these has checksums, and an epoch, so that frames have them."""
        return any(isinstance(process, SimRank) and process.core.has_checksums for process in processes)

    def stop_reducer(self, index: int, restart_s: float, *, moves: bool = False) -> None:
        """Kill a reducer; another process takes its place after a while."""
        self.reducers[index].kill()
        self._restart(index, restart_s, moves=moves)

    def restart_when_gone(self, index: int, restart_s: float) -> None:
        """Have another process take the place of one that ends by itself."""
        if self.reducers[index].is_alive:
            at = self.network.clock.now + 0.1
            self.network.clock.at(at, lambda: self.restart_when_gone(index, restart_s))
        else:
            self._restart(index, restart_s)

    def _restart(self, index: int, restart_s: float, *, moves: bool = False) -> None:
        if index in self._waiting:
            return
        self._waiting.add(index)
        if moves and not self._is_colocated:
            self.addresses[index] = f"{self.host_of(index)}x:50051"
        self.network.clock.at(self.network.clock.now + restart_s, lambda: self._start_again(index))

    def _reducer(self, address: str, life: int) -> SimReducer:
        return SimReducer(self.network, address, life, MEMORY_BYTES)

    def _start_again(self, index: int) -> None:
        self._waiting.discard(index)
        if self.reducers[index].is_alive:
            return
        address = self.addresses[index]
        self._lives[address] += 1
        self.reducers[index] = self._reducer(address, self._lives[address])

    # ---- the run ----

    def run(self) -> Outcome:
        """Let everything happen; return how it ended."""
        found: list[str] = []
        try:
            self._run()
        except Exception as error:  # of a core, or what no driver could do
            found.append("".join(traceback.format_exception(error)[-3:]))
        found += self.judge(self.history)
        happened = Counter(record["kind"] for record in self.history if record["what"] == "fault")
        happened.update(record["what"] for record in self.history if record["what"] in ("killed", "strayed"))
        return Outcome(self.seed, self.plan, found, self.history, self.network.clock.now, happened)

    def _run(self) -> None:
        clock = self.network.clock
        while clock.now < FAULTS_S and not all(job.is_done for job in self.jobs):
            clock.step()
        self.is_calm = True
        self.record("calm")
        end = clock.now + CALM_S
        while clock.now < end and not all(job.is_done for job in self.jobs):
            clock.step()
        for job in self.jobs:
            if not job.is_done:
                self.record("left", text=f"job {job.shape.name} is not done: {job.where()}")
        end = clock.now + self.SETTLE_S
        while clock.now < end:
            clock.step()
        if all(job.is_done for job in self.jobs):
            for reducer in self.reducers:
                for text in reducer.leftovers() if reducer.is_alive else ():
                    self.record("left", text=text)


def simulate(seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> Outcome:
    """Run the world of a seed."""
    return World(seed, plan, kinds).run()
