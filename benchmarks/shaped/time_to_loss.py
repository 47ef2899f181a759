"""How soon a training on shaped links reaches a loss: ours in each wire dtype, torch's hooks and PowerSGD.

    python -m benchmarks.shaped.time_to_loss --workers 4 --rate 50 --steps 400
    python -m benchmarks.shaped.time_to_loss --local-sgd 16 --wires int8 --baselines none

The trainings of `benchmarks.numerics.convergence` run side by side on the same processes, a few
steps of each in turn, so that other load on the machine slows all of them. The target is 1 % above
fp32's final loss, which is the mean of the last tenth of its steps. A training has reached the
target when the mean of its last WINDOW steps has. A training that has not reached it when fp32 is
done goes on, for up to `--most` times as many steps. Time is the sum of the seconds of all steps on
rank 0, computing included.

The exit code is 1 if a wire dtype of CHECKED, both with error feedback, is not LEAST times as fast
as fp32. Writes time-to-loss-MODEL.json and time-to-loss-MODEL.png. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.lab import environment
from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.traffic import Link
from benchmarks.method.results import RESULTS
from benchmarks.method.table import markdown
from benchmarks.numerics.convergence import BASELINES, LIMIT, WIRES, final_of, names_of, ways
from benchmarks.numerics.convergence_load import LEARNERS, Training, Way

#: Version of the JSON; raised when a field changes its meaning.
FORMAT = 1
#: Number of turns in which fp32 does all its steps.
TURNS = 20
#: Number of last steps whose mean loss is compared with the target.
WINDOW = 20
CHECKED, LEAST = ("int8", "topk"), 1.3
HEAD = ("way", "final loss", "by fp32", "ms per step", "steps to target", "s to target", "x fp32")


@dataclass(slots=True)
class Run:
    """One training."""

    way: Way
    #: Loss of each step, the mean over the ranks.
    losses: list[float] = field(default_factory=list)
    #: Seconds of each step on rank 0.
    seconds: list[float] = field(default_factory=list)

    def train(self, cluster: Cluster, count: int) -> None:
        """Do `count` more steps."""
        losses, seconds = cluster.ranks.call("run", self.way.name, count)[0]
        self.losses += losses
        self.seconds += seconds

    def final(self, steps: int) -> float:
        """Return the mean loss of the last tenth of the first `steps`."""
        return final_of(self.losses[:steps])

    def steps_to(self, target: float) -> int | None:
        """Return after how many steps the mean of the last WINDOW had reached the target, or None."""
        sums = [0.0, *accumulate(self.losses)]
        reached = (
            end for end in range(WINDOW, len(sums)) if sums[end] - sums[end - WINDOW] <= WINDOW * target
        )
        return next(reached, None)

    def time_to(self, target: float) -> float:
        """Return the seconds until the target was reached; infinite if it never was."""
        steps = self.steps_to(target)
        return float("inf") if steps is None else sum(self.seconds[:steps])


def train(cluster: Cluster, chosen: Sequence[Way], model: str, steps: int, most: int) -> list[Run]:
    """Train in all ways until each has reached the target; the first way is fp32, which sets it."""
    cluster.ranks.load(Training, model)
    for way in chosen:
        job = re.sub("[^a-z0-9.]+", "-", way.name)
        cluster.ranks.call("begin", way, cluster.reducers.addresses, job)
    runs = [Run(way) for way in chosen]
    while len(runs[0].losses) < steps:
        _advance(cluster, runs, steps, steps)
    target = target_of(runs[0], steps)
    while late := [run for run in runs if run.steps_to(target) is None and len(run.losses) < most]:
        _advance(cluster, late, steps, most)
    for way in chosen:
        cluster.ranks.call("end", way.name)
    return runs


def _advance(cluster: Cluster, runs: Sequence[Run], steps: int, until: int) -> None:
    for run in runs:
        run.train(cluster, min(max(1, steps // TURNS), until - len(run.losses)))
    losses = ", ".join(f"{run.way.name} {run.losses[-1]:.3f}" for run in runs)
    print(f"{len(runs[0].losses)} steps: {losses}", file=sys.stderr, flush=True)


def target_of(reference: Run, steps: int) -> float:
    """Return the loss that all trainings are to reach."""
    return reference.final(steps) * (1 + LIMIT)


def row_of(run: Run, reference: Run, steps: int) -> dict[str, Any]:
    """Return how a training compares with float32's."""
    target = target_of(reference, steps)
    return {
        "way": run.way.name,
        "final": run.final(steps),
        "above_fp32": run.final(steps) / reference.final(steps) - 1,
        "step_s": sum(run.seconds) / len(run.seconds),
        "steps": run.steps_to(target),
        "seconds": None if run.steps_to(target) is None else run.time_to(target),
        "times_as_fast": reference.time_to(target) / run.time_to(target),
    }


def cells(run: Run, reference: Run, steps: int) -> list[str]:
    """Return the cells of HEAD."""
    row = row_of(run, reference, steps)
    return [
        row["way"],
        f"{row['final']:.4f}",
        f"{row['above_fp32']:+.2%}",
        f"{1e3 * row['step_s']:.0f}",
        f"{row['steps'] or 'never'}",
        f"{run.time_to(target_of(reference, steps)):.1f}",
        f"{row['times_as_fast']:.2f}",
    ]


def slow(runs: Sequence[Run], steps: int) -> list[str]:
    """Return a message for each wire dtype of CHECKED that is not fast enough."""
    target, problems = target_of(runs[0], steps), []
    for run in runs:
        factor = runs[0].time_to(target) / run.time_to(target)
        is_checked = (run.way.wire or "").partition(":")[0] in CHECKED and not run.way.alone
        if is_checked and not factor >= LEAST:
            problems.append(f"{run.way.name} is {factor:.2f} times as fast as fp32, {LEAST} is wanted")
    return problems


def main() -> None:
    # Every rank imports this module, and does not need matplotlib.
    from benchmarks.shaped.time_to_loss_figure import figure, png

    given = _arguments()
    link = Link(rate_mbit=given.rate)
    shape = Shape(workers=given.workers, reducers=given.workers, link=link)
    chosen = ways(given.wires, given.baselines)
    if given.local_sgd:
        chosen += [
            Way("local SGD, int8", "int8", given.local_sgd),
            Way("local SGD, Gloo", None, given.local_sgd),
        ]
    with ending_well("time_to_loss"), running(shape, with_goodput=False) as cluster:
        runs = train(cluster, chosen, given.model, given.steps, given.most * given.steps)
    described = environment.describe()
    print(environment.summary(described))
    print(
        f"{given.model}, n=k={given.workers}, {given.rate:g} Mbit/s, target {target_of(runs[0], given.steps):.4f}\n"
    )
    print("\n".join(markdown(HEAD, [cells(run, runs[0], given.steps) for run in runs])))
    problems = slow(runs, given.steps)
    given.out.mkdir(parents=True, exist_ok=True)
    settings = {
        "local_sgd": given.local_sgd,
        "model": given.model,
        "steps": given.steps,
        "workers": given.workers,
        "rate_mbit": given.rate,
        "queue_ms": link.queue_ms,
    }
    document = {
        "format": FORMAT,
        "environment": described,
        "settings": settings,
        "rows": [row_of(run, runs[0], given.steps) for run in runs],
        "runs": [asdict(run) for run in runs],
        "problems": problems,
    }
    (given.out / f"time-to-loss-{given.model}.json").write_text(json.dumps(document) + "\n")
    (given.out / f"time-to-loss-{given.model}.png").write_bytes(
        png(figure(runs, target_of(runs[0], given.steps)))
    )
    if problems:
        sys.exit("\n".join(["time_to_loss: failed", *problems]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shaped.time_to_loss",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=tuple(LEARNERS), default="wide", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of fp32 (%(default)s)")
    parser.add_argument("--most", type=int, default=4, help="times as many of the others (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="and as many reducers (%(default)s)")
    parser.add_argument("--rate", type=float, default=50, help="Mbit/s of every link, each way (%(default)s)")
    parser.add_argument(
        "--wires", type=names_of(WIRES), default="bf16,fp8,int8,topk:0.1", help="(%(default)s)"
    )
    parser.add_argument(
        "--baselines", type=names_of(BASELINES), default="none,bf16_hook,powersgd", help="(%(default)s)"
    )
    parser.add_argument(
        "--local-sgd",
        type=int,
        default=0,
        metavar="STEPS",
        help="also let ranks train this many steps alone, and then average over ours in int8, and over Gloo",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the files (%(default)s)")
    given = parser.parse_args()
    if given.steps < WINDOW or given.workers < 2 or given.most < 1:
        parser.error(f"--steps must be at least {WINDOW}, --workers 2, --most 1")
    return given


if __name__ == "__main__":
    main()
