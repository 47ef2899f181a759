"""Collectives of several sizes in turn with a barrier after each: the time of a round, and its page faults.

    python -m benchmarks.micro.mixed                                        # 96 MiB and 4 bytes, n=2, one reducer
    python -m benchmarks.micro.mixed --sizes 4,64KiB,1MiB,16MiB,96MiB
    python -m benchmarks.micro.mixed --sizes 96MiB,96MiB                    # to compare with: equal sizes

In a steady state, the plug-in uses its memory again whatever sizes take turns. Then a round has no
page faults. All sums are checked.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import TRANSPORTS, Rank
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import LEAD_S, timed
from benchmarks.method.records import quartiles
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import size

GB = 1e9
#: Number of first rounds that are checked, but not counted.
WARMUP_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Round:
    """The times and page faults of one rank in one round."""

    #: Seconds of each collective, from the barrier before it to its result.
    seconds: list[float]
    cpu_s: float
    #: Page faults of the process during the round.
    faults: int


class Mixed(AllReduce):
    """One tensor of each size, reduced one after the other."""

    def __init__(self, rank: Rank, numels: list[int]) -> None:
        super().__init__(rank, max(numels), 0)
        self._tensors = [torch.empty(numel) for numel in numels]

    def round(self, contender: str, start_at: float) -> Round:
        """Reduce all tensors one after the other, with a barrier after each."""
        reduce = partial(self._ours, self._rank.states[contender])
        steps = [step for tensor in self._tensors for step in (partial(reduce, tensor), dist.barrier)]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        sample = timed(steps, start_at)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        return Round(sample.seconds[::2], sample.cpu_s, faults)

    def _fill(self, tensor: torch.Tensor, rank: int, index: int) -> None:
        tensor.copy_(self._pattern[: tensor.numel()]).add_(self._key + index + 1).mul_(rank + 1)

    def _expect(self, index: int) -> None:
        inputs = [torch.empty_like(self._tensors[index]) for _ in range(self._rank.world_size)]
        for rank, tensor in enumerate(inputs):
            self._fill(tensor, rank, index)
        self._expected = torch.stack(inputs).sum(0)


def measure(cluster: Cluster, contender: str, sizes: list[int], rounds: int) -> list[list[Round]]:
    """Return the rounds that count, each as seen by all ranks."""
    ranks, seen = cluster.ranks, []
    ranks.load(Mixed, [max(1, nbytes // 4) for nbytes in sizes])
    for _ in range(WARMUP_ROUNDS + rounds):
        ranks.call("prepare")
        seen.append(ranks.call("round", contender, time.perf_counter() + LEAD_S))
        ranks.call("verify")
    return seen[WARMUP_ROUNDS:]


def rows(sizes: list[int], seen: list[list[Round]]) -> list[list[str]]:
    """Return a table row for each size, and one for the whole round."""
    lines = []
    for index, nbytes in enumerate(sizes):
        slowest = [max(rank.seconds[index] for rank in ranks) for ranks in seen]
        lines.append([f"{nbytes} bytes", *_ms(slowest), "", ""])
    whole = [max(sum(rank.seconds) for rank in ranks) for ranks in seen]
    cpu_s = statistics.mean(rank.cpu_s for ranks in seen for rank in ranks)
    faults = statistics.median(rank.faults for ranks in seen for rank in ranks)
    lines.append(["the round", *_ms(whole), f"{cpu_s / sum(sizes) * GB:.2f}", f"{faults:.0f}"])
    return lines


def _ms(seconds: list[float]) -> tuple[str, str]:
    low, middle, high = quartiles(seconds)
    return f"{middle * 1e3:.2f}", f"{low * 1e3:.2f} to {high * 1e3:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.mixed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--reducers", type=int, default=1)
    parser.add_argument(
        "--sizes", type=lambda text: [size(part) for part in text.split(",")], default="96MiB,4"
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default="tcp")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    shape = Shape(workers=given.workers, reducers=given.reducers)
    with ending_well("mixed"), running(shape) as cluster:
        seen = measure(cluster, given.transport, given.sizes, given.rounds)
    head = ["collective", "ms", "quartiles", "worker CPU s/GB", "pages faulted in"]
    print("\n".join(markdown(head, rows(given.sizes, seen))))


if __name__ == "__main__":
    main()
