"""`ReductionState()` without any settings on one machine, as on a first try, taking turns with Gloo's ring.

    python -m benchmarks.micro.one_machine                                    # n = 2, 3, 4 and 8
    python -m benchmarks.micro.one_machine --workers 4 --sizes 1MiB,24MiB --rounds 20
    python -m benchmarks.micro.one_machine --workers 4 --cold 1               # a barrier and a second of pause
    python -m benchmarks.micro.one_machine --contender tcp --reducers 1       # `reducer serve` over loopback
    python -m benchmarks.micro.one_machine --workers 2,4 --train mlp,transformer
    python -m benchmarks.micro.one_machine --workers 2,4 --contender group --peer default    # backend against state
    python -m benchmarks.micro.one_machine --workers 4 --cold 1 --mixed       # sizes in turn after the pause
    python -m benchmarks.micro.one_machine --workers 2 --contender watched --peer unwatched --collectives 20

CPU includes all processes: ranks, and the reducers that they start. All sums are checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ranks import OURS
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.experiment import Cell, Line, among, effort_of, listed, size, table
from benchmarks.method.paired import Effort, Measurement, Sample, compare
from benchmarks.method.progress import Progress, kept
from benchmarks.method.report import Report
from benchmarks.method.row import Row
from benchmarks.method.table import size_text, spread

DEFAULT_SIZES = "4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
#: Approximate bytes per turn, and maximum collectives per turn.
TURN_BYTES, TURN_COLLECTIVES = 16 << 20, 50


class Cold(AllReduce):
    """A workload that reduces each size after a pause, as in training steps, and a barrier; one of them is timed."""

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


def columns_of(name: str, peer: str = "ring") -> dict[str, Cell]:
    """Return the columns of a table that compares a contender with another one, or with Gloo's ring."""
    theirs = "Gloo" if peer == "ring" else peer

    def cpu(row: Row, contender: str) -> float:
        return _cpu_s_per_gb(row, row.measured[contender])

    def load(row: Row) -> str:
        is_sum = row.what == "all-reduce"
        return size_text(row.size_bytes) if is_sum else row.what.removeprefix("training step, ")

    return {
        "n": lambda row: f"{row.shape.workers}",
        "k": lambda row: f"{row.shape.reducers or 'own'}",
        "size": load,
        "ours, ms": lambda row: f"{row.measured[name].turn_s * 1e3:.2f}",
        f"{theirs}, ms": lambda row: f"{row.measured[peer].turn_s * 1e3:.2f}",
        f"{theirs} / ours (quartiles)": lambda row: spread(
            row.measured[name].times_as_fast_as(row.measured[peer])
        ),
        "CPU s/GB, ours": lambda row: f"{cpu(row, name):.2f}",
        theirs: lambda row: f"{cpu(row, peer):.2f}",
        f"ours / {theirs}": lambda row: f"{cpu(row, name) / cpu(row, peer):.2f}",
    }


def _cpu_s_per_gb(row: Row, measured: Measurement) -> float:
    """Return the CPU seconds of all processes per GB of all ranks' tensors."""
    nbytes = row.size_bytes * row.iterations * len(measured.turns) * row.shape.workers
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
        # The largest size is in the middle.
        sizes = (*settings.sizes[::2], *settings.sizes[1::2]) if settings.mixed else (size_bytes,)
        cluster.ranks.load(Cold, size_bytes // 4, [each // 4 for each in sizes], cold_s)
    measured = compare(cluster, contenders, effort)
    return Row(cluster.shape, "all-reduce", size_bytes, iterations, measured)


def train(cluster: Cluster, contender: str, model: str, effort: Effort) -> Row:
    """Let the contender and the ring alternate training steps."""
    contenders = [contender, "ring"]
    cluster.ranks.load(Training, contenders, model)
    measured = compare(cluster, contenders, effort)
    return Row(cluster.shape, f"training step, {model}", gradient_bytes(NARROW[model]), 1, measured)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the settings of the command line."""
    line = Line("micro.one_machine", __doc__, rounds=7, json=None)
    add = line.add_argument
    add("--workers", type=listed(int), default=[2, 3, 4, 8])
    add("--reducers", type=int, default=0, help="0: the ranks start their own")
    add("--sizes", type=listed(size), default=DEFAULT_SIZES)
    add("--contender", choices=tuple(OURS), default="default")
    add("--peer", choices=(*OURS, "ring"), default="ring", help="stands in the table in Gloo's place")
    add("--cold", type=float, metavar="SECONDS", help="pause and barrier before each collective")
    add("--mixed", action="store_true", help="with --cold: all sizes after each pause")
    add("--collectives", type=int, help=f"of a turn; else those of {TURN_BYTES >> 20} MiB")
    add("--train", type=among(NARROW), default=[], help="training steps of these models instead")
    return line.parse_args(words)


def main() -> None:
    given = parse()
    effort = effort_of(given)
    report, columns = Report(), columns_of(given.contender, given.peer)
    loads = given.train or given.sizes
    progress = Progress([float(workers) for workers in given.workers for _ in loads])
    with kept("one_machine", lambda: report.show(given.json, partial(table, columns))):
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
