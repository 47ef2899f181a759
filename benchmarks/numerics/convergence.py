"""Whether training converges as well with fewer bytes: ours in each wire dtype, and torch's own compression hooks.

    python -m benchmarks.numerics.convergence                             # character transformer, 400 steps, all ways
    python -m benchmarks.numerics.convergence --model digits --wires fp32,int8 --baselines none

Every way trains from the same weights on the same batches: over 2 reducers, with DDP and `reduction_hook`, in each wire
dtype; over Gloo, with DDP's own averaging ("none"), `bf16_compress_hook`, `fp16_compress_hook` and PowerSGD of rank 2.
SGD with momentum 0.9. All on loopback: bytes are compared here, not seconds.

The final loss is the mean of the last tenth of the steps over all ranks. Bytes are those of gradients that one rank
sends and receives: ours as the reducers' status counts them (received_bytes and sent_bytes of the job, over n; a new
chunk size is a new epoch, in which what was in flight is pushed again), torch's by the formulas of
`convergence_load.torch_bytes`. "x fewer" is by DDP's own averaging in float32.

Exit code 1 if int8 or topk, both with error feedback, end more than LIMIT above fp32. Writes convergence-MODEL.json and
convergence-MODEL.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import environment
from benchmarks.lab.ranks import Ranks, RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.method.table import markdown
from benchmarks.numerics.convergence_load import HOOKS, LEARNERS, Training, Way, torch_bytes
from reducer.observe.status import Access, fetch

RESULTS = Path(__file__).parents[1] / "results"
#: Of the JSON; raised when a field changes its meaning.
FORMAT = 1
REDUCERS = 2
WIRES = ("fp32", "bf16", "fp16", "fp8", "int8", "topk")
BASELINES = ("none", *HOOKS, "powersgd")
#: Most of the final loss above that of fp32, for those of CHECKED.
LIMIT, CHECKED = 0.01, ("int8", "topk")
#: Commands per training; the bytes are read after each.
SLICES = 10
#: Seconds that a reducer may take to say what it has counted.
_STATUS_S = 10.0

HEAD = ("way", "final loss", "by fp32", "KiB per step", "x fewer")


@dataclass(frozen=True, slots=True)
class Trained:
    """One training."""

    way: Way
    #: Of each step, the mean over the ranks.
    losses: list[float]
    #: Until the end of each step, sent and received by one rank.
    nbytes: list[float]

    @property
    def final(self) -> float:
        """The mean of the last tenth."""
        return final_of(self.losses)

    @property
    def step_bytes(self) -> float:
        """The mean over all steps."""
        return self.nbytes[-1] / len(self.nbytes)


def final_of(losses: Sequence[float]) -> float:
    """Return the mean of the last tenth."""
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last)


def ways(wires: Sequence[str], baselines: Sequence[str]) -> list[Way]:
    """Return them in order; fp32 is always there, all others are compared with it."""
    ours = [Way(f"ours, {wire}", wire) for wire in dict.fromkeys(("fp32", *wires))]
    return ours + [Way(name, None) for name in BASELINES if name in baselines]


def train(
    way: Way, steps: int, ranks: Ranks, addresses: Sequence[str], shapes: Sequence[Sequence[int]]
) -> Trained:
    """Train once on processes that run.

    Raises:
        RanksFailed: a rank raised, or did not answer.
    """
    job = f"convergence-{way.wire}".replace(":", "-")
    ranks.call("begin", way, addresses, job)
    losses: list[float] = []
    nbytes: list[float] = []
    world_size = ranks.world_size
    for index in range(SLICES):
        count = steps * (index + 1) // SLICES - len(losses)
        if not count:
            continue
        losses += ranks.call("run", way.name, count)[0][0]
        before = nbytes[-1] if nbytes else 0.0
        if way.wire is None:
            for step in range(len(nbytes), len(losses)):
                nbytes.append(
                    (nbytes[-1] if nbytes else 0.0) + torch_bytes(way.name, shapes, step, world_size)
                )
        else:
            grown = counted(addresses, job) / world_size - before
            nbytes += [before + grown * (step + 1) / count for step in range(count)]
    ranks.call("end", way.name)
    return Trained(way, losses, nbytes)


def counted(addresses: Sequence[str], job: str) -> int:
    """Return the bytes of all pushes and results of a job that is still there."""
    return sum(
        counters.received_bytes + counters.sent_bytes
        for address in addresses
        for counters in fetch(address, _STATUS_S, Access()).jobs
        if counters.job == job
    )


def run(model: str, steps: int, workers: int, chosen: Sequence[Way]) -> list[Trained]:
    """Train in all ways.

    Raises:
        RanksFailed: a rank raised, or did not answer.
    """
    learner = LEARNERS[model]()
    shapes = [tuple(parameter.shape) for parameter in learner.model().parameters()]
    with closing(Reducers(REDUCERS)) as reducers, closing(Ranks(workers, reducers.addresses)) as ranks:
        ranks.load(Training, model)
        trained = []
        for way in chosen:
            trained.append(train(way, steps, ranks, reducers.addresses, shapes))
            print(f"{way.name}: {trained[-1].final:.4f}", file=sys.stderr, flush=True)
        return trained


def row_of(trained: Trained, reference: Trained, full_bytes: float) -> dict[str, Any]:
    """Return how a training compares with float32's; `full_bytes` are a step's in float32."""
    return {
        "way": trained.way.name,
        "final": trained.final,
        "above_fp32": trained.final / reference.final - 1,
        "step_bytes": trained.step_bytes,
        "times_fewer_bytes": full_bytes / trained.step_bytes,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of HEAD."""
    return [
        row["way"],
        f"{row['final']:.4f}",
        f"{row['above_fp32']:+.2%}",
        f"{row['step_bytes'] / 1024:.1f}",
        f"{row['times_fewer_bytes']:.1f}",
    ]


def worse(trained: Sequence[Trained], limit: float) -> list[str]:
    """Return which of CHECKED end too far above fp32."""
    reference = trained[0]
    problems = []
    for training in trained:
        above = training.final / reference.final - 1
        if (training.way.wire or "").partition(":")[0] in CHECKED and not above <= limit:
            problems.append(f"{training.way.name} ends {above:+.2%} above fp32, the limit is {limit:.2%}")
    return problems


def main() -> None:
    from benchmarks.numerics.convergence_figure import (  # not above: every rank imports this module
        figure,
        png,
    )

    given = _arguments()
    try:
        trained = run(given.model, given.steps, given.workers, ways(given.wires, given.baselines))
    except RanksFailed as error:
        sys.exit(f"convergence: {error}")
    shapes = [tuple(parameter.shape) for parameter in LEARNERS[given.model]().model().parameters()]
    full_bytes = torch_bytes("none", shapes, 0, given.workers)
    described = environment.describe()
    print(environment.summary(described))
    print(f"{given.model}, {given.steps} steps, {given.workers} workers, {REDUCERS} reducers\n")
    rows = [row_of(training, trained[0], full_bytes) for training in trained]
    print("\n".join(markdown(HEAD, [cells(row) for row in rows])))
    problems = worse(trained, LIMIT)
    given.out.mkdir(parents=True, exist_ok=True)
    document = {
        "format": FORMAT,
        "environment": described,
        "settings": {
            "model": given.model,
            "steps": given.steps,
            "workers": given.workers,
            "reducers": REDUCERS,
        },
        "rows": rows,
        "trained": [asdict(training) for training in trained],
        "problems": problems,
    }
    (given.out / f"convergence-{given.model}.json").write_text(json.dumps(document) + "\n")
    (given.out / f"convergence-{given.model}.png").write_bytes(png(figure(trained)))
    if problems:
        sys.exit("\n".join(["convergence: failed", *problems]))
    print(f"\n{' and '.join(CHECKED)}, where trained, end at most {LIMIT:.0%} above fp32")


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what takes a comma-separated list of such names apart; topk:RATIO is always known."""

    def parse(text: str) -> list[str]:
        names = [part for part in text.split(",") if part]
        if unknown := sorted({name for name in names if not name.startswith("topk:")} - set(known)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; known are {', '.join(known)}")
        return names

    return parse


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.numerics.convergence", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=400, help="of each training (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--model", choices=tuple(LEARNERS), default="transformer", help="(%(default)s)")
    parser.add_argument(
        "--wires",
        type=names_of(WIRES),
        default=",".join(WIRES),
        help="ours, also topk:RATIO; always fp32 (%(default)s)",
    )
    parser.add_argument(
        "--baselines", type=names_of(BASELINES), default=",".join(BASELINES), help="torch's (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder for the JSON and the figure (%(default)s)"
    )
    given = parser.parse_args()
    if given.steps < 1 or given.workers < 2:
        parser.error("--steps must be at least 1, --workers at least 2")
    return given


if __name__ == "__main__":
    main()
