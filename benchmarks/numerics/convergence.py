"""Convergence of training with fewer bytes, with our wire dtypes and with torch's own compression hooks.

    python -m benchmarks.numerics.convergence                             # character transformer, 400 steps, all ways
    python -m benchmarks.numerics.convergence --model digits --wires fp32,int8 --baselines none
    python -m benchmarks.numerics.convergence --workers 4 --shard 2 --wires int8,fp8   # HSDP

All ways train from the same weights on the same batches. Over 2 reducers, DDP trains with
`reduction_hook` in each wire dtype. Over Gloo, DDP trains with its own averaging ("none"),
`bf16_compress_hook`, `fp16_compress_hook` and PowerSGD of rank 2. The optimizer is SGD with momentum
0.9. With --shard, HSDP trains over the backend "reduction" instead, in each wire dtype with and without
error feedback. Everything runs on loopback, because bytes are compared here, not seconds.

The final loss is the mean of the last tenth of the steps over all ranks. Bytes are for the gradients
that one rank sends and receives. Ours are from the reducers' status: received_bytes and sent_bytes of
the job, divided by n. They include contributions that are pushed again after a change of the chunk size.
torch's bytes follow from the formulas of `convergence_load.torch_bytes`. "x fewer" compares with DDP's
own averaging in float32.

The exit code is 1 if int8 or topk, both with error feedback, end more than LIMIT above fp32. Writes
convergence-MODEL.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import Ranks
from benchmarks.lab.reducers import Reducers
from benchmarks.method.experiment import Line, among, at_least, fail, show
from benchmarks.method.results import RESULTS
from benchmarks.numerics.convergence_load import HOOKS, LEARNERS, Training, Way, torch_bytes
from reducer.observe.status import StatusAccess, fetch

REDUCERS = 2
WIRES = ("fp32", "bf16", "fp16", "fp8", "int8", "topk")
BASELINES = ("none", *HOOKS, "powersgd")
#: Limit by which the final loss of a wire dtype in CHECKED may exceed that of fp32.
LIMIT, CHECKED = 0.01, ("int8", "topk")
#: Number of slices of a training. The bytes are read after each slice.
SLICES = 10
#: Timeout for a reducer to answer a status request, in seconds.
_STATUS_S = 10.0

COLUMNS = {
    "way": "{way}",
    "final loss": "{final:.4f}",
    "by fp32": "{above_fp32:+.2%}",
    "KiB per step": lambda row: f"{row['step_bytes'] / 1024:.1f}",
    "x fewer": "{times_fewer_bytes:.1f}",
}


@dataclass(slots=True)
class Run:
    """One training."""

    way: Way
    #: Loss of each step as the mean over the ranks.
    losses: list[float] = field(default_factory=list)
    #: Seconds of each step on rank 0.
    seconds: list[float] = field(default_factory=list)
    #: Bytes that one rank has sent and received by the end of each step, if they are counted.
    nbytes: list[float] = field(default_factory=list)

    def train(self, ranks: Ranks, count: int) -> None:
        """Do `count` more steps."""
        losses, seconds = ranks.call("run", self.way.name, count)[0]
        self.losses += losses
        self.seconds += seconds

    def final(self, steps: int | None = None) -> float:
        """Return the final loss, which is the mean of the last tenth of all steps, or of the first `steps`."""
        losses = self.losses[:steps]
        last = losses[-max(1, len(losses) // 10) :]
        return sum(last) / len(last)

    @property
    def step_bytes(self) -> float:
        """Mean bytes of a step."""
        return self.nbytes[-1] / len(self.nbytes)


def ways(wires: Sequence[str], baselines: Sequence[str], shard: int = 0) -> list[Way]:
    """Return the ways in order. fp32 always comes first, since all others are compared with it."""
    if shard:
        with_it = [Way(f"hsdp, {wire}", wire, shard=shard) for wire in dict.fromkeys(("fp32", *wires))]
        without = [Way(f"{way.name}, no feedback", way.wire, 0, shard, False) for way in with_it[1:]]
        return with_it + without
    ours = [Way(f"ours, {wire}", wire) for wire in dict.fromkeys(("fp32", *wires))]
    return ours + [Way(name, None) for name in BASELINES if name in baselines]


def train(
    way: Way, steps: int, ranks: Ranks, addresses: Sequence[str], shapes: Sequence[Sequence[int]]
) -> Run:
    """Train once on running processes.

    Raises:
        RanksFailed: a rank raised, or did not answer.
    """
    job = f"convergence-{way.wire}".replace(":", "-") + ("" if way.has_feedback else "-without")
    ranks.call("begin", way, addresses, job)
    run, size = Run(way), ranks.world_size
    for index in range(SLICES):
        count = steps * (index + 1) // SLICES - len(run.losses)
        if not count:
            continue
        done, before = len(run.losses), run.nbytes[-1] if run.nbytes else 0.0
        run.train(ranks, count)
        if way.wire is None:
            each = [torch_bytes(way.name, shapes, step, size) for step in range(done, done + count)]
        else:
            each = [(counted(addresses, job) / size - before) / count] * count
        run.nbytes += list(accumulate(each, initial=before))[1:]
    ranks.call("end", way.name)
    return run


def counted(addresses: Sequence[str], job: str) -> int:
    """Return the bytes of all pushes and results of a job that has not ended."""
    jobs = [one for address in addresses for one in fetch(address, _STATUS_S, StatusAccess()).jobs]
    # Each group of a mesh is a separate job, with its ranks after the name.
    ours = [one for one in jobs if one.job.partition(" ")[0] == job]
    return sum(one.received_bytes + one.sent_bytes for one in ours)


def run(model: str, steps: int, workers: int, chosen: Sequence[Way]) -> list[Run]:
    """Train in all ways.

    Raises:
        RanksFailed: a rank raised, or did not answer.
    """
    learner = LEARNERS[model]()
    shapes = [tuple(parameter.shape) for parameter in learner.build().parameters()]
    with closing(Reducers(REDUCERS)) as reducers, closing(Ranks(workers, reducers.addresses)) as ranks:
        ranks.load(Training, model)
        trained = []
        for way in chosen:
            trained.append(train(way, steps, ranks, reducers.addresses, shapes))
            print(f"{way.name}: {trained[-1].final():.4f}", file=sys.stderr, flush=True)
        return trained


def row_of(trained: Run, reference: Run, full_bytes: float) -> dict[str, Any]:
    """Return a row that compares a training with float32's; `full_bytes` are a step's bytes in float32."""
    return {
        "way": trained.way.name,
        "final": trained.final(),
        "above_fp32": trained.final() / reference.final() - 1,
        "step_bytes": trained.step_bytes,
        "times_fewer_bytes": full_bytes / trained.step_bytes,
    }


def worse(trained: Sequence[Run], limit: float) -> list[str]:
    """Return a message for each wire dtype in CHECKED that ends too far above fp32."""
    reference = trained[0]
    problems = []
    for training in trained:
        above = training.final() / reference.final() - 1
        is_checked = training.way.has_feedback and (training.way.wire or "").partition(":")[0] in CHECKED
        if is_checked and not above <= limit:
            problems.append(f"{training.way.name} ends {above:+.2%} above fp32, the limit is {limit:.2%}")
    return problems


def main() -> None:
    given = _arguments()
    with ending_well("convergence"):
        trained = run(
            given.model, given.steps, given.workers, ways(given.wires, given.baselines, given.shard)
        )
    shapes = [tuple(parameter.shape) for parameter in LEARNERS[given.model]().build().parameters()]
    shards = given.shard or 1
    full_bytes = torch_bytes("none", shapes, 0, given.workers // shards) / shards
    title = f"{given.model}, {given.steps} steps, {given.workers} workers, {REDUCERS} reducers\n"
    rows = [row_of(training, trained[0], full_bytes) for training in trained]
    problems = worse(trained, LIMIT)
    path = given.out / f"convergence-{'hsdp-' if given.shard else ''}{given.model}.json"
    losses = [asdict(training) for training in trained]
    show(given, COLUMNS, rows, title, path=path, trained=losses, problems=problems)
    fail("convergence", problems)
    print(f"\n{' and '.join(CHECKED)}, where trained, end at most {LIMIT:.0%} above fp32")


def add_ways(line: Line, wires: str, baselines: str) -> None:
    """Add the options for the ways of training, with these defaults."""
    ours = "ours, also topk:RATIO; always fp32 (%(default)s)"
    line.add_argument("--wires", type=among(WIRES, also="topk:"), default=wires, help=ours)
    line.add_argument("--baselines", type=among(BASELINES), default=baselines, help="torch's (%(default)s)")


def _arguments() -> argparse.Namespace:
    line = Line("numerics.convergence", __doc__, workers=2, out=RESULTS)
    add = line.add_argument
    add("--steps", type=at_least(1), default=400, help="of each training (%(default)s)")
    add("--model", choices=tuple(LEARNERS), default="transformer", help="(%(default)s)")
    add_ways(line, ",".join(WIRES), ",".join(BASELINES))
    shard = "ranks of a node: HSDP over the backend, with and without error feedback; no baselines (DDP)"
    add("--shard", type=int, default=0, help=shard)
    given = line.parse_args()
    if given.workers < 2:
        line.error("--workers must be at least 2")
    if given.shard and (given.shard < 2 or given.workers % given.shard or given.workers == given.shard):
        line.error("--workers must be a multiple of --shard, and more; --shard at least 2")
    given.reducers = REDUCERS
    return given


if __name__ == "__main__":
    main()
