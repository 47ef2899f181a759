"""Time to a target loss on shaped links: ours in each wire dtype, torch's hooks and PowerSGD.

    python -m benchmarks.shaped.time_to_loss --workers 4 --rate 50 --steps 400
    python -m benchmarks.shaped.time_to_loss --local-sgd 16 --wires int8 --baselines none

The trainings of `benchmarks.numerics.convergence` alternate on the same processes, a few steps of each
in turn, so that other load on the machine slows all of them. The target is 1 % above fp32's final loss,
which is the mean of the last tenth of its steps. A training has reached the target when the mean of its
last WINDOW steps has. A training that has not reached it when fp32 has finished continues, for up to
`--most` times as many steps. Time is the sum of the seconds of all steps on rank 0, including
computation.

The exit code is 1 if a wire dtype in CHECKED (both use error feedback) is not LEAST times as fast as
fp32. Writes time-to-loss-MODEL.json and time-to-loss-MODEL.png. Needs root and iproute2.
"""

from __future__ import annotations

import math
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from benchmarks.lab.cluster import Cluster, running
from benchmarks.lab.ending import ending_well
from benchmarks.method.experiment import Line, at_least, fail, shape_of, show
from benchmarks.method.results import RESULTS
from benchmarks.numerics.convergence import LIMIT, Run, add_ways, ways
from benchmarks.numerics.convergence_load import LEARNERS, Training, Way

#: Number of turns in which fp32 takes all its steps.
TURNS = 20
#: Number of latest steps whose mean loss is compared with the target.
WINDOW = 20
CHECKED, LEAST = ("int8", "topk"), 1.3
COLUMNS = {
    "way": "{way}",
    "final loss": "{final:.4f}",
    "by fp32": "{above_fp32:+.2%}",
    "ms per step": lambda row: f"{1e3 * row['step_s']:.0f}",
    "steps to target": lambda row: f"{row['steps'] or 'never'}",
    "s to target": lambda row: f"{math.inf if row['seconds'] is None else row['seconds']:.1f}",
    "x fp32": "{times_as_fast:.2f}",
}


def steps_to(run: Run, target: float) -> int | None:
    """Return the number of steps until the mean of the last WINDOW reached the target, or None."""
    sums = [0.0, *accumulate(run.losses)]
    reached = (end for end in range(WINDOW, len(sums)) if sums[end] - sums[end - WINDOW] <= WINDOW * target)
    return next(reached, None)


def time_to(run: Run, target: float) -> float:
    """Return the seconds until the target was reached, infinite if it never was."""
    steps = steps_to(run, target)
    return math.inf if steps is None else sum(run.seconds[:steps])


def train(cluster: Cluster, chosen: Sequence[Way], model: str, steps: int, most: int) -> list[Run]:
    """Train in all ways until each has reached the target, which is set by the first way, fp32."""
    cluster.ranks.load(Training, model)
    for way in chosen:
        job = re.sub("[^a-z0-9.]+", "-", way.name)
        cluster.ranks.call("begin", way, cluster.reducers.addresses, job)
    runs = [Run(way) for way in chosen]
    while len(runs[0].losses) < steps:
        _advance(cluster, runs, steps, steps)
    target = target_of(runs[0], steps)
    while late := [run for run in runs if steps_to(run, target) is None and len(run.losses) < most]:
        _advance(cluster, late, steps, most)
    for way in chosen:
        cluster.ranks.call("end", way.name)
    return runs


def _advance(cluster: Cluster, runs: Sequence[Run], steps: int, until: int) -> None:
    for run in runs:
        run.train(cluster.ranks, min(max(1, steps // TURNS), until - len(run.losses)))
    losses = ", ".join(f"{run.way.name} {run.losses[-1]:.3f}" for run in runs)
    print(f"{len(runs[0].losses)} steps: {losses}", file=sys.stderr, flush=True)


def target_of(reference: Run, steps: int) -> float:
    """Return the target loss of all trainings."""
    return reference.final(steps) * (1 + LIMIT)


def row_of(run: Run, reference: Run, steps: int) -> dict[str, Any]:
    """Return a row that compares a training with float32's."""
    target = target_of(reference, steps)
    return {
        "way": run.way.name,
        "final": run.final(steps),
        "above_fp32": run.final(steps) / reference.final(steps) - 1,
        "step_s": sum(run.seconds) / len(run.seconds),
        "steps": steps_to(run, target),
        "seconds": None if steps_to(run, target) is None else time_to(run, target),
        "times_as_fast": time_to(reference, target) / time_to(run, target),
    }


def slow(runs: Sequence[Run], steps: int) -> list[str]:
    """Return a message for each wire dtype of CHECKED that is not fast enough."""
    target, problems = target_of(runs[0], steps), []
    for run in runs:
        factor = time_to(runs[0], target) / time_to(run, target)
        is_checked = (run.way.wire or "").partition(":")[0] in CHECKED and not run.way.alone
        if is_checked and not factor >= LEAST:
            problems.append(f"{run.way.name} is {factor:.2f} times as fast as fp32, {LEAST} is wanted")
    return problems


def main() -> None:
    # Every rank imports this module, but does not need matplotlib.
    from benchmarks.shaped.time_to_loss_figure import figure, png

    given = _arguments()
    chosen = ways(given.wires, given.baselines)
    if given.local_sgd:
        chosen += [
            Way("local SGD, int8", "int8", given.local_sgd),
            Way("local SGD, Gloo", None, given.local_sgd),
        ]
    with ending_well("time_to_loss"), running(shape_of(given), with_goodput=False) as cluster:
        runs = train(cluster, chosen, given.model, given.steps, given.most * given.steps)
    target, problems = target_of(runs[0], given.steps), slow(runs, given.steps)
    title = f"{given.model}, n=k={given.workers}, {given.rate:g} Mbit/s, target {target:.4f}\n"
    rows = [row_of(run, runs[0], given.steps) for run in runs]
    path = given.out / f"time-to-loss-{given.model}.json"
    show(given, COLUMNS, rows, title, path=path, runs=[asdict(run) for run in runs], problems=problems)
    path.with_suffix(".png").write_bytes(png(figure(runs, target)))
    fail("time_to_loss", problems)


def _arguments() -> Namespace:
    line = Line("shaped.time_to_loss", __doc__, workers=4, reducers=None, rate=50.0, out=RESULTS)
    add = line.add_argument
    add("--model", choices=tuple(LEARNERS), default="wide", help="(%(default)s)")
    add("--steps", type=at_least(WINDOW), default=400, help="of fp32 (%(default)s)")
    add("--most", type=at_least(1), default=4, help="times as many of the others (%(default)s)")
    add_ways(line, "bf16,fp8,int8,topk:0.1", "none,bf16_hook,powersgd")
    alone = "also let ranks train this many steps alone, and then average over ours in int8, and over Gloo"
    add("--local-sgd", type=int, default=0, metavar="STEPS", help=alone)
    given = line.parse_args()
    if given.workers < 2:
        line.error("--workers must be at least 2")
    return given


if __name__ == "__main__":
    main()
