"""Two concurrent jobs on the same hosts, links and reducers, compared with each of them alone.

    python -m benchmarks.shaped --two-jobs --rate 500 --contenders tcp,ring

For each contender the first job, the second job, and both together take turns. Two rings are two Gloo groups.
Every result is compared with the exact sum. `the slower one's part` is the fraction of its tensors that the
slower job had reduced when the faster one finished; 1 means that both had the same share of the links. `lost
together` is the time until both had finished, divided by the sum of their times alone, less 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ranks import Ranks
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import LEAD_S, Effort
from benchmarks.method.table import quartiles, spread

COLUMNS = {
    "link": "{link}",
    "contender": "{contender}",
    "alone, s": lambda row: spread(row["alone_s"]),
    "the slower one's part (quartiles)": lambda row: spread(row["part_of_the_slower"]),
    "lost together (quartiles)": lambda row: spread(row["lost"], ".1%"),
}


class Round(NamedTuple):
    """Seconds until the slowest rank of a job had finished."""

    alone: list[float]
    both: list[float]

    @property
    def part(self) -> float:
        """Fraction of its work that the slower job had done when the faster one finished."""
        slower = self.both.index(max(self.both))
        return 1 - (max(self.both) - min(self.both)) / self.alone[slower]

    @property
    def lost(self) -> float:
        """Fraction by which both together take longer than one after the other."""
        return max(self.both) / sum(self.alone) - 1


def measure(
    shape: Shape, contenders: Sequence[str], effort: Effort, size_bytes: int
) -> dict[str, list[Round]]:
    """Let the jobs take turns, alone and together."""
    rounds: dict[str, list[Round]] = {name: [] for name in contenders}
    with running(shape, with_goodput=False) as cluster:
        assert cluster.network is not None
        hosts = cluster.network.workers
        with (
            closing(Ranks(shape.workers, cluster.reducers.addresses, hosts=hosts)) as other,
            ThreadPoolExecutor(2) as threads,
        ):
            jobs = cluster.ranks, other
            for job in jobs:
                job.load(AllReduce, size_bytes // 4, 1)
            for index in range(effort.warmup_rounds + effort.rounds):
                for name in contenders:
                    alone = [_turn(threads, [job], name)[0] for job in jobs]
                    round_ = Round(alone, _turn(threads, jobs, name))
                    rounds[name] += [round_] if index >= effort.warmup_rounds else []
    return rounds


def _turn(threads: ThreadPoolExecutor, jobs: Sequence[Ranks], name: str) -> list[float]:
    for job in jobs:
        job.call("prepare")
    start_at = time.perf_counter() + LEAD_S
    samples = list(threads.map(lambda job: job.call("run", name, start_at), jobs))
    for job in jobs:
        job.call("verify")
    return [max(sum(sample.seconds) for sample in of_job) for of_job in samples]


def rows_of(shape: Shape, rounds: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    assert shape.link is not None
    return [
        {
            "network": shape.link.json(),
            "link": shape.link.name,
            "contender": name,
            "alone_s": quartiles([seconds for one in measured for seconds in one.alone]),
            "part_of_the_slower": quartiles([one.part for one in measured]),
            "lost": quartiles([one.lost for one in measured]),
        }
        for name, measured in rounds.items()
    ]
