"""Paired measurements: contenders take turns on the same processes, A B C A B C ..., so other load slows all of them.

The ratio of two contenders is the median over the ratios of neighbouring turns. All ranks sleep until an
agreed time of their shared clock, and then begin the turn. A turn ends when the last rank has its last
result.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.lab.ranks import Ranks
from benchmarks.lab.traffic import Traffic
from benchmarks.method.table import Quartiles, quartiles

if TYPE_CHECKING:
    from benchmarks.lab.cluster import Cluster

#: Seconds from the command to the agreed beginning of a turn, so that every rank is asleep before it.
LEAD_S = 0.03
#: Seconds after the last result in which CPU still counts, since acknowledgements and the release of
#: buffers belong to the cost of a turn.
SETTLE_S = 0.08
#: Minimum number of turns for a 99th percentile.
TURNS_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """The times of one rank in one turn."""

    #: Seconds of each iteration, from the end of the previous one.
    seconds: list[float]
    cpu_s: float


@dataclass(slots=True)
class Measurement:
    """The times, CPU and traffic of one contender in all its turns."""

    #: Seconds per iteration of each turn, until the slowest rank had finished.
    turns: list[float] = field(default_factory=list)
    #: Seconds of each iteration on each rank.
    iterations: list[float] = field(default_factory=list)
    #: Sum over all ranks and turns.
    worker_cpu_s: float = 0.0
    #: Sum over all reducers and turns.
    reducer_cpu_s: float = 0.0
    #: Sum over all turns.
    traffic: Traffic = field(default_factory=Traffic)

    def add(self, samples: Sequence[Sample], reducer_cpu_s: float, traffic: Traffic) -> None:
        """Add a turn."""
        self.turns.append(max(sum(sample.seconds) / len(sample.seconds) for sample in samples))
        for sample in samples:
            self.iterations.extend(sample.seconds)
            self.worker_cpu_s += sample.cpu_s
        self.reducer_cpu_s += reducer_cpu_s
        self.traffic += traffic

    def times_as_fast_as(self, other: Measurement) -> Quartiles:
        """Return the quartiles of other time / own time, over all pairs of neighbouring turns."""
        return quartiles([theirs / own for theirs, own in zip(other.turns, self.turns, strict=True)])

    @property
    def p50_s(self) -> float:
        """The seconds of the median iteration."""
        return statistics.median(self.iterations)

    @property
    def p99_s(self) -> float | None:
        """The seconds per iteration that one turn in a hundred exceeds; None if there are too few turns to say."""
        if len(self.turns) < TURNS_FOR_P99:
            return None
        return statistics.quantiles(self.turns, n=100, method="inclusive")[-1]

    @property
    def turn_s(self) -> float:
        """The seconds per iteration of the median turn."""
        return statistics.median(self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The number of turns to measure."""

    #: Maximum number of counted turns per contender.
    rounds: int
    #: Seconds after which no further round begins, once there are `rounds_min`.
    budget_s: float = math.inf
    rounds_min: int = 3
    #: Initial rounds in which memory, congestion windows and bucket layouts settle. They are checked but
    #: not counted.
    warmup_rounds: int = 2


def timed(steps: Sequence[Callable[[], object]], start_at: float) -> Sample:
    """Run the steps in a rank from `start_at` on. On Linux, perf_counter is the same clock in the whole cluster."""
    cpu_s = time.process_time()
    time.sleep(max(0.0, start_at - time.perf_counter()))
    ends = [start_at]
    for step in steps:
        step()
        ends.append(time.perf_counter())
    time.sleep(SETTLE_S)
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    return Sample(seconds, time.process_time() - cpu_s)


def turn(ranks: Ranks, contender: str) -> list[Sample]:
    """Let a contender take one checked turn, and return each rank's measurements."""
    ranks.call("prepare")
    samples: list[Sample] = ranks.call("run", contender, time.perf_counter() + LEAD_S)
    ranks.call("verify")
    return samples


def compare(cluster: Cluster, contenders: Sequence[str], effort: Effort) -> dict[str, Measurement]:
    """Let the contenders of the loaded workload take turns, and check every result.

    Args:
        cluster: its ranks have loaded a workload with `prepare()`, `run(contender, start_at) -> Sample` and
            `verify()`.
        contenders: names that `run` knows.
        effort: number of turns.
    """
    measured = {name: Measurement() for name in contenders}
    ranks = cluster.ranks
    deadline = time.monotonic() + effort.budget_s
    for round_ in range(effort.warmup_rounds + effort.rounds):
        if round_ >= effort.warmup_rounds + effort.rounds_min and time.monotonic() > deadline:
            break
        for name in contenders:
            ranks.call("prepare")
            before, traffic = _reducer_cpu_s(cluster), cluster.traffic()
            samples = ranks.call("run", name, time.perf_counter() + LEAD_S)
            cpu_s, traffic = _reducer_cpu_s(cluster) - before, cluster.traffic() - traffic
            ranks.call("verify")
            if round_ >= effort.warmup_rounds:
                measured[name].add(samples, cpu_s, traffic)
    return measured


def _reducer_cpu_s(cluster: Cluster) -> float:
    return cluster.reducers.cpu_s() + cluster.ranks.embedded_cpu_s()
