"""A world: jobs and reducers on hosts, and everything that happens to them. The seed determines the run."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from history.checker import violations
from reduction.model import NOWHERE, Place
from simulation import faults, members, paces
from simulation.faults import Fault
from simulation.job import Job, Shape
from simulation.network import Network, Process, number_of
from simulation.rank import SimRank
from simulation.reducer import SimReducer
from simulation.servers import PORT, Server

#: Faults occur during the first FAULTS_S seconds; everything must then finish within CALM_S.
FAULTS_S, CALM_S = 60.0, 400.0
#: Mean number of faults in a run, and in a dense run, whose jobs are long.
FAULTS_MEAN, DENSE_MEAN = 12.0, 300.0
#: Seconds after a fault during which paces may still differ.
PACES_S = 15.0
#: Seconds after a fault, or after the start of a job, during which it may do without a running reducer.
MEMBERS_S = 45.0
Record = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    seed: int
    faults: list[Fault]
    violations: list[str]
    history: list[Record]
    #: Simulated seconds.
    seconds: float
    happened: Counter[str] = field(default_factory=Counter)


class World:
    """The whole of one run.

    Args:
        seed: determines the world.
        plan: the faults; None for those that the seed draws.
        kinds: the kinds from which the seed may choose.
        is_dense: whether the seed draws many faults and long jobs.
    """

    #: The checker from `tests/history`.
    judge = staticmethod(violations)
    #: Seconds after the end of all jobs when nothing of them may remain.
    SETTLE_S = 15.0

    def __init__(
        self,
        seed: int,
        plan: Sequence[Fault] | None = None,
        kinds: Sequence[str] = (),
        *,
        is_dense: bool = False,
    ) -> None:
        random = Random(f"{seed}/world")
        self.seed, self._is_dense = seed, is_dense
        self.network = Network(Random(f"{seed}/network"))
        self.history: list[Record] = []
        reducers = random.choice([1, 2, 2, 3, 4])
        self._is_colocated = random.random() < 0.2
        first = [f"a-{index}" for index in range(reducers)] if self._is_colocated else []
        hosts = first or [f"reducer-{index}" for index in range(reducers)]
        # Later additions draw from their own generator, so that older seeds keep their worlds.
        later = Random(f"{seed}/servers")
        #: Possible link rates in Mbit/s, one of which is drawn for each host; 0 if the host does not report it.
        self._mbits = later.choice([(), (0,), (1000,), (1000, 2500, 10000), (0, 1000, 10000)])
        self.network.is_metered = later.random() < 0.5
        processes = [later.choice([1, 1, 1, 2, 3]) for _ in hosts]
        self.servers = [
            Server(self.network, host, count, self.place(host), self.record)
            for host, count in zip(hosts, processes, strict=True)
        ]
        #: For each server, the time until which the name service's answers leave it out.
        self.unnamed_until: dict[Server, float] = {}
        #: When the present clog ends; another one in the meantime would prolong it.
        self.clogged_until = 0.0
        #: Whether the time of faults is over.
        self.is_calm = False
        self.stranger = Process(self.network, "stranger")
        names = ["a", "b"] if random.random() < 0.4 else ["a"]
        self.jobs = [
            self._job(
                random, name, max(2, reducers) if self._is_colocated else random.choice([1, 2, 3, 4, 5])
            )
            for name in names
        ]
        count = round(random.expovariate(1 / (DENSE_MEAN if is_dense else FAULTS_MEAN)))
        self.plan = (
            list(plan)
            if plan is not None
            else faults.plan(random, count, FAULTS_S, list(kinds or faults.KINDS))
        )
        #: End of the last fault so far; a killed process counts as a fault.
        self._faulty_until = 0.0
        self._check_settled()
        for fault in self.plan:
            self.network.clock.at(fault.at, lambda fault=fault: self._strike(fault))
        for job in self.jobs:
            job.start([random.choice([0.0, 0.2, 8.0]) * random.random() for _ in range(job.shape.ranks)])

    def _job(self, random: Random, name: str, ranks: int) -> Job:
        shape = Shape(
            name=name,
            ranks=ranks,
            collectives=100 if self._is_dense else random.choice([1, 20, 100]),
            depth=random.choice([1, 2, 8]),
            think_s=0.3 if self._is_dense else random.choice([0.01, 0.1, 0.8]),
            checksums=random.random() < 0.5,
            chunk_bytes=random.choice([None, 1024, 1024, 4096]),
            credit_bytes=random.choice([None, 4096, 16384]),
            drifts=tuple(random.choice([1.0, 1.0, 0.97, 1.03]) for _ in range(ranks)),
            local_size=Random(f"{self.seed}/{name}/node").choice([1, 1, 2, 4]),
            on_reducer_loss=Random(f"{self.seed}/{name}/loss").choice([*["reshard"] * 6, "wait", "raise"]),
        )
        # Only with "reshard" does a job start without a named reducer. With the other policies a job gets no aliases,
        # since they may lead nowhere.
        names = self.named if shape.on_reducer_loss == "reshard" else self.named_servers
        return Job(self.network, f"{self.seed}/{name}", shape, names, self.place, self.record)

    def named(self) -> tuple[str, ...]:
        """Return the reducer addresses that the name service reports now."""
        return (*self.named_servers(), *(f"{alias}:{PORT}" for alias in self.network.aliases))

    def named_servers(self) -> tuple[str, ...]:
        """Return the reported reducer addresses that are not aliases."""
        now = self.network.clock.now
        named = [server for server in self.servers if self.unnamed_until.get(server, -1.0) <= now]
        return tuple(server.address for server in named or self.servers[:1])

    def place(self, host: str) -> Place:
        """Return the place that the processes of a host report."""
        if not self._mbits:
            return NOWHERE
        return Place(number_of(host), Random(f"{self.seed}/{host}").choice(self._mbits))

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            faults.strike(self, fault)

    def _check_settled(self) -> None:
        """Check what must hold once there has been no fault for a while."""
        now = self.network.clock.now
        self.network.clock.at(now + 0.5, self._check_settled)
        for job in self.jobs:
            if self.network.is_metered and now > self._faulty_until + PACES_S:
                paces.check(job)
            if now > max(self._faulty_until, job.began_at) + MEMBERS_S:
                members.check(job, self.reducers)

    # ---- used by faults ----

    def record(self, what: str, **fields: Any) -> None:
        """Add a record to the history."""
        now = self.network.clock.now
        self.history.append({"what": what, "t": now, **fields})
        if what in ("fault", "killed"):
            self._faulty_until = max(self._faulty_until, now + fields.get("seconds", 0.0))

    def note(self, kind: str, hosts: Sequence[str], seconds: float) -> None:
        """Record a fault."""
        self.record("fault", kind=kind, hosts=list(hosts), seconds=seconds)

    @property
    def reducers(self) -> list[SimReducer]:
        """The current process of each reducer, alive or not."""
        return [reducer for server in self.servers for reducer in server.reducers]

    def server(self, number: int) -> Server:
        """Return one of the servers."""
        return self.servers[number % len(self.servers)]

    def processes(self) -> list[Process]:
        """Return all living processes."""
        ranks: list[Process] = [rank for job in self.jobs for rank in job.ranks]
        return [process for process in (*self.reducers, *ranks) if process.is_alive]

    def process(self, number: int) -> Process:
        """Return one of the living processes."""
        known = self.processes() or [self.stranger]
        return known[number % len(known)]

    def path(self, fault: Fault) -> tuple[str, str]:
        """Return the hosts of a reducer and of a rank."""
        job = self.jobs[fault.second % len(self.jobs)]
        return self.server(fault.first).host, job.host(fault.second // 7 % job.shape.ranks)

    def isolate(self, host: str, seconds: float) -> None:
        """Cut all paths of a host."""
        for other in sorted({process.host for process in self.processes()} - {host}):
            self.network.cut(host, other, seconds)
            self.network.cut(other, host, seconds)

    def has_checksums(self, *processes: Process) -> bool:
        """Return whether the job of one of these has an epoch with checksums, so that its frames have them."""
        return any(isinstance(process, SimRank) and process.core.has_checksums for process in processes)

    def stop_server(self, server: Server, restart_s: float, *, moves: bool = False) -> None:
        """Kill all processes of a server; it returns after a while, perhaps on another host."""
        server.stop(restart_s, host=f"{server.host}x" if moves and not self._is_colocated else "")

    # ---- the run ----

    def run(self) -> Outcome:
        """Run the world to its end; return the outcome."""
        found: list[str] = []
        try:
            self._run()
        except Exception as error:  # raised by a core, or because it asked for what no driver could do
            found.append("".join(traceback.format_exception(error)[-3:]))
        found += self.judge(self.history)
        happened = Counter(record["kind"] for record in self.history if record["what"] == "fault")
        happened.update(
            record["what"] for record in self.history if record["what"] in ("killed", "strayed", "quit")
        )
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


def simulate(
    seed: int, plan: Sequence[Fault] | None = None, kinds: Sequence[str] = (), *, is_dense: bool = False
) -> Outcome:
    """Run the world of a seed."""
    return World(seed, plan, kinds, is_dense=is_dense).run()
