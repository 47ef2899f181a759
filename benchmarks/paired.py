"""Contenders in turn on the same processes: A B A B ..., so that what slows the machine slows both.

The ratio of two contenders is the median over the ratios of neighbouring turns. All ranks start a turn at an
agreed moment of the clock they share, asleep until then; a turn ends when the last rank has its last result.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.ranks import Ranks
from benchmarks.reducers import Reducers

#: Rounds that are checked, but not counted: memory and bucket layouts settle.
WARMUP_ROUNDS = 2
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

    def add(self, samples: Sequence[Sample], reducer_cpu_s: float) -> None:
        """Take in a turn."""
        self.turns.append(max(sum(sample.seconds) / len(sample.seconds) for sample in samples))
        for sample in samples:
            self.iterations.extend(sample.seconds)
            self.worker_cpu_s += sample.cpu_s
        self.reducer_cpu_s += reducer_cpu_s

    @property
    def p50_s(self) -> float:
        """The median iteration."""
        return statistics.median(self.iterations)

    @property
    def turn_s(self) -> float:
        """The median turn, per iteration."""
        return statistics.median(self.turns)


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


def compare(
    ranks: Ranks, reducers: Reducers, contenders: Sequence[str], *, rounds: int, budget_s: float
) -> dict[str, Measurement]:
    """Let the contenders of the loaded workload run in turn; check every result.

    Args:
        ranks: with a workload that has `prepare()`, `run(contender, start_at) -> Sample` and `verify()`.
        reducers: those that the ranks use.
        contenders: names that `run` knows.
        rounds: turns of each.
        budget_s: no further round after so many seconds; at least three are run.
    """
    measured = {name: Measurement() for name in contenders}
    deadline = time.monotonic() + budget_s
    for round_ in range(WARMUP_ROUNDS + rounds):
        if round_ >= WARMUP_ROUNDS + 3 and time.monotonic() > deadline:
            break
        for name in contenders:
            ranks.call("prepare")
            before = reducers.cpu_s()
            samples = ranks.call("run", name, time.perf_counter() + LEAD_S)
            after = reducers.cpu_s()
            ranks.call("verify")
            if round_ >= WARMUP_ROUNDS:
                measured[name].add(samples, after - before)
    return measured
