"""Contenders in turn on the same processes: A B C A B C ..., so that what slows the machine slows all.

The ratio of two contenders is the median over the ratios of neighbouring turns. All ranks start a turn at an
agreed moment of the clock they share, asleep until then; a turn ends when the last rank has its last result.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.lab.ranks import Ranks
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.traffic import Traffic
from benchmarks.method.records import Quartiles, quartiles

#: From the order to run until the run, enough for every rank to be asleep again.
LEAD_S = 0.03
#: After the last result: acknowledgements and releases belong to the cost.
SETTLE_S = 0.08


@dataclass(frozen=True, slots=True)
class Sample:
    """What one rank saw of one turn."""

    #: Of each iteration, from the end of the one before.
    seconds: list[float]
    cpu_s: float


@dataclass(slots=True)
class Measurement:
    """What one contender did in all its turns."""

    #: Of each turn, until the slowest rank was done, per iteration.
    turns: list[float] = field(default_factory=list)
    #: Of each iteration on each rank.
    iterations: list[float] = field(default_factory=list)
    #: All ranks, all turns.
    worker_cpu_s: float = 0.0
    #: All reducers, all turns.
    reducer_cpu_s: float = 0.0
    #: All turns.
    traffic: Traffic = field(default_factory=Traffic)

    def add(self, samples: Sequence[Sample], reducer_cpu_s: float, traffic: Traffic) -> None:
        """Take in a turn."""
        self.turns.append(max(sum(sample.seconds) / len(sample.seconds) for sample in samples))
        for sample in samples:
            self.iterations.extend(sample.seconds)
            self.worker_cpu_s += sample.cpu_s
        self.reducer_cpu_s += reducer_cpu_s
        self.traffic += traffic

    def times_as_fast_as(self, other: Measurement) -> Quartiles:
        """Return the quartiles of the other's time by this one's, over all pairs of neighbouring turns."""
        return quartiles([theirs / own for theirs, own in zip(other.turns, self.turns, strict=True)])

    @property
    def p50_s(self) -> float:
        """The median iteration."""
        return statistics.median(self.iterations)

    @property
    def turn_s(self) -> float:
        """The median turn, per iteration."""
        return statistics.median(self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure."""

    #: Turns of each contender that count.
    rounds: int
    #: No further round after so many seconds; at least `rounds_min` are run.
    budget_s: float
    rounds_min: int = 3
    #: Rounds before, checked but not counted: memory, congestion windows and bucket layouts settle.
    warmup_rounds: int = 2


class Processes(Protocol):
    """What runs: see `benchmarks.lab.cluster`."""

    @property
    def ranks(self) -> Ranks:
        """Return the rank processes."""
        ...

    @property
    def reducers(self) -> Reducers:
        """Return those that the ranks use."""
        ...

    def traffic(self) -> Traffic:
        """Return what went over the links until now."""
        ...


def timed(steps: Sequence[Callable[[], object]], start_at: float) -> Sample:
    """Run the steps from `start_at` on; in a rank. On Linux all processes share perf_counter's zero."""
    cpu_s = time.process_time()
    time.sleep(max(0.0, start_at - time.perf_counter()))
    ends = [start_at]
    for step in steps:
        step()
        ends.append(time.perf_counter())
    time.sleep(SETTLE_S)
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    return Sample(seconds, time.process_time() - cpu_s)


def compare(processes: Processes, contenders: Sequence[str], effort: Effort) -> dict[str, Measurement]:
    """Let the contenders of the loaded workload run in turn; check every result.

    Args:
        processes: whose ranks have a workload with `prepare()`, `run(contender, start_at) -> Sample` and
            `verify()`.
        contenders: names that `run` knows.
        effort: how much.
    """
    measured = {name: Measurement() for name in contenders}
    ranks, reducers = processes.ranks, processes.reducers
    deadline = time.monotonic() + effort.budget_s
    for round_ in range(effort.warmup_rounds + effort.rounds):
        if round_ >= effort.warmup_rounds + effort.rounds_min and time.monotonic() > deadline:
            break
        for name in contenders:
            ranks.call("prepare")
            cpu_s, traffic = reducers.cpu_s(), processes.traffic()
            samples = ranks.call("run", name, time.perf_counter() + LEAD_S)
            cpu_s, traffic = reducers.cpu_s() - cpu_s, processes.traffic() - traffic
            ranks.call("verify")
            if round_ >= effort.warmup_rounds:
                measured[name].add(samples, cpu_s, traffic)
    return measured
