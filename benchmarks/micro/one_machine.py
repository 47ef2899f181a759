"""`ReductionState()` with nothing configured, on one machine: what a first try meets. Beside it Gloo's ring, in turn.

    python -m benchmarks.micro.one_machine                                    # n = 2, 3, 4 and 8
    python -m benchmarks.micro.one_machine --workers 4 --sizes 1MiB,24MiB --rounds 20
    python -m benchmarks.micro.one_machine --workers 4 --cold 1               # a barrier and a second of pause
    python -m benchmarks.micro.one_machine --contender tcp --reducers 1       # `reducer serve` over loopback
    python -m benchmarks.micro.one_machine --workers 2,4 --train mlp,transformer
    python -m benchmarks.micro.one_machine --workers 2,4 --contender group --peer default    # backend against state
    python -m benchmarks.micro.one_machine --workers 4 --cold 1 --mixed       # sizes in turn after the pause
    python -m benchmarks.micro.one_machine --workers 2 --contender watched --peer unwatched --collectives 20

CPU is that of all processes: ranks, and the reducers that they start. All sums are checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ranks import OURS
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.paired import Effort, Measurement, Sample, compare
from benchmarks.method.progress import Progress, kept
from benchmarks.method.report import Report
from benchmarks.method.row import Row
from benchmarks.method.table import markdown, size_text
from benchmarks.shaped.__main__ import counts, sizes

DEFAULT_SIZES = "4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
#: About how many bytes a turn reduces, and in how many collectives at most.
TURN_BYTES, TURN_COLLECTIVES = 16 << 20, 50
HEAD = [
    "n",
    "k",
    "size",
    "ours, ms",
    "Gloo, ms",
    "Gloo / ours (quartiles)",
    "CPU s/GB, ours",
    "Gloo",
    "ours / Gloo",
]


class Cold(AllReduce):
    """Before each collective the ranks pause and meet at a barrier, as in training steps."""

    def __init__(self, rank: object, numel: int, iterations: int, pause_s: float) -> None:
        super().__init__(rank, numel, iterations)  # type: ignore[arg-type]
        self._pause_s = pause_s

    def run(self, contender: str, start_at: float) -> Sample:
        """Reduce all tensors, one after the other; only that is timed."""
        seconds, cpu_s = [], 0.0
        tensors = self._tensors
        for tensor in tensors:
            time.sleep(self._pause_s)
            dist.barrier()
            self._tensors = [tensor]
            sample = super().run(contender, time.perf_counter())
            seconds += sample.seconds
            cpu_s += sample.cpu_s
        self._tensors = tensors
        return Sample(seconds, cpu_s)


class Mixed(AllReduce):
    """After a pause a collective of each size, each after a barrier; one of them is timed."""

    def __init__(self, rank: object, numel: int, numels: list[int], pause_s: float) -> None:
        super().__init__(rank, numel, 1)  # type: ignore[arg-type]
        self._others = [None if other == numel else torch.empty(other) for other in numels]
        self._pause_s = pause_s

    def run(self, contender: str, start_at: float) -> Sample:
        """Reduce a tensor of each size."""
        time.sleep(self._pause_s)
        sample = None
        for other in self._others:
            if other is None:
                dist.barrier()
                sample = super().run(contender, time.perf_counter())
                continue
            other.fill_(1.0)
            dist.barrier()
            if contender == "ring":
                self._ring(other)
            else:
                self._ours(self._rank.states[contender], other)
            if not torch.equal(other, torch.full_like(other, self._rank.world_size)):
                raise AssertionError(f"a sum of {len(other)} elements is wrong")
        assert sample is not None  # the sizes have this one
        return sample


def cells(row: Row, name: str, peer: str = "ring") -> list[str]:
    """Return a row's figures as text."""
    ours, ring = row.measured[name], row.measured[peer]
    low, median, high = ours.times_as_fast_as(ring)
    mine, theirs = (_cpu_s_per_gb(row, each) for each in (ours, ring))
    return [
        str(row.workers),
        str(row.reducers or "own"),
        row.what.removeprefix("training step, ") if row.what != "all-reduce" else size_text(row.size_bytes),
        f"{ours.turn_s * 1e3:.2f}",
        f"{ring.turn_s * 1e3:.2f}",
        f"{median:.2f} ({low:.2f}-{high:.2f})",
        f"{mine:.2f}",
        f"{theirs:.2f}",
        f"{mine / theirs:.2f}",
    ]


def models(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    names = text.split(",")
    if unknown := set(names) - set(NARROW):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(NARROW)}")
    return names


def _cpu_s_per_gb(row: Row, measured: Measurement) -> float:
    """Return the CPU seconds of all processes per GB of all ranks' tensors."""
    nbytes = row.size_bytes * row.iterations * len(measured.turns) * row.workers
    return (measured.worker_cpu_s + measured.reducer_cpu_s) / nbytes * 1e9


def measure(
    cluster: Cluster, contenders: list[str], size_bytes: int, effort: Effort, settings: argparse.Namespace
) -> Row:
    """Let the contenders take turns."""
    cold_s: float | None = settings.cold
    iterations = settings.collectives or max(1, min(TURN_COLLECTIVES, TURN_BYTES // size_bytes))
    if cold_s is None:
        cluster.ranks.load(AllReduce, size_bytes // 4, iterations)
    else:
        iterations = 1
        if settings.mixed:
            # The largest one in the middle of small ones.
            order = [size // 4 for size in (*settings.sizes[::2], *settings.sizes[1::2])]
            cluster.ranks.load(Mixed, size_bytes // 4, order, cold_s)
        else:
            cluster.ranks.load(Cold, size_bytes // 4, iterations, cold_s)
    measured = compare(cluster, contenders, effort)
    return Row.of(cluster, "all-reduce", size_bytes, iterations, measured)


def train(cluster: Cluster, contender: str, model: str, effort: Effort) -> Row:
    """Let the contender and the ring take turns at training steps."""
    contenders = [contender, "ring"]
    cluster.ranks.load(Training, contenders, model)
    measured = compare(cluster, contenders, effort)
    return Row.of(cluster, f"training step, {model}", gradient_bytes(NARROW[model]), 1, measured)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the settings of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.one_machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=counts, default=[2, 3, 4, 8])
    parser.add_argument("--reducers", type=int, default=0, help="0: the ranks start their own")
    parser.add_argument("--sizes", type=sizes, default=DEFAULT_SIZES)
    parser.add_argument("--contender", choices=tuple(OURS), default="default")
    parser.add_argument(
        "--peer", choices=(*OURS, "ring"), default="ring", help="stands in the table in Gloo's place"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cold", type=float, metavar="SECONDS", help="pause and barrier before each collective"
    )
    parser.add_argument("--mixed", action="store_true", help="with --cold: all sizes after each pause")
    parser.add_argument("--collectives", type=int, help=f"of a turn; else those of {TURN_BYTES >> 20} MiB")
    parser.add_argument("--train", type=models, default=[], help="training steps of these models instead")
    parser.add_argument("--json", type=Path, help="also write what `make bench` writes")
    return parser.parse_args(words)


def main() -> None:
    given = parse()
    effort = Effort(rounds=given.rounds, budget_s=float("inf"))
    report = Report()
    head = [name if given.peer == "ring" else name.replace("Gloo", given.peer) for name in HEAD]

    def table(rows: Sequence[Row]) -> list[str]:
        return markdown(head, [cells(row, given.contender, given.peer) for row in rows])

    loads = given.train or given.sizes
    progress = Progress([float(workers) for workers in given.workers for _ in loads])
    with kept("one_machine", lambda: report.show(given.json, table)):
        for workers in given.workers:
            with running(Shape(workers=workers, reducers=given.reducers)) as cluster:
                for load in loads:
                    if given.train:
                        row = train(cluster, given.contender, load, effort)
                    else:
                        row = measure(cluster, [given.contender, given.peer], load, effort, given)
                    report.rows.append(row)
                    progress.done(row.line())


if __name__ == "__main__":
    main()
