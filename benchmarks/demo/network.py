"""The demonstration on a network: a small transformer trains with DDP over reducers, and over Gloo's ring.

    sudo make demo-network        or, as root,        python -m benchmarks.demo.network

Four workers and four reducers, each on a host of its own (a network namespace), with links of 200 Mbit/s each way. The
same processes train the model in both ways, step by step in turn, so that what slows the machine slows both. Every
gradient is checked: ours must have the bits of the sum in rank order. Needs root, iproute2 and Linux.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.traffic import Link
from benchmarks.loads.training import Training, gradient_bytes
from benchmarks.method.paired import LEAD_S

WORKERS, RATE_MBIT = 4, 200
STEPS = 6
#: DDP makes its buckets anew after the first step, and our credit adapts to the links.
WARMUP_STEPS = 2
NAMES = {"tcp": "reducers", "ring": "Gloo's ring", "noop": "no communication"}
#: Characters of the longest bar.
WIDTH = 48


def train(cluster: Cluster, steps: int) -> dict[str, list[float]]:
    """Return the seconds of each step, of the slowest rank, by contender; prints them as they come."""
    ranks = cluster.ranks
    ranks.load(Training, list(NAMES))
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for step in range(WARMUP_STEPS + steps):
        took = {}
        for name in NAMES:
            ranks.call("prepare")
            samples = ranks.call("run", name, time.perf_counter() + LEAD_S)
            ranks.call("verify")
            took[name] = max(sample.seconds[0] for sample in samples)
            if step >= WARMUP_STEPS:
                seconds[name].append(took[name])
        shown = ", ".join(f"{NAMES[name]} {one:.2f} s" for name, one in took.items())
        print(f"step {step + 1}: {shown}{'' if step >= WARMUP_STEPS else ' (not counted)'}", flush=True)
    return seconds


def picture(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a bar for each contender, as long as its median step."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    longest = max(medians.values())
    return "\n".join(
        f"{NAMES[name]:>16}  {'█' * max(1, round(WIDTH * one / longest))} {one * 1e3:.0f} ms"
        for name, one in medians.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo.network", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps of each to count")
    steps = parser.parse_args().steps
    shape = Shape(workers=WORKERS, reducers=WORKERS, link=Link(rate_mbit=RATE_MBIT))
    print(
        f"{WORKERS} workers and {WORKERS} reducers, each on a host of its own, links of {RATE_MBIT} Mbit/s each way; "
        f"{gradient_bytes() / 1e6:.0f} MB of gradients",
        flush=True,
    )
    try:
        with ending_well("demo"), running(shape, with_goodput=False) as cluster:
            seconds = train(cluster, steps)
    except (NetworkUnavailable, RanksFailed) as error:
        sys.exit(f"demo failed: {error}")
    ratio = statistics.median(ring / ours for ring, ours in zip(seconds["ring"], seconds["tcp"], strict=True))
    print(f"\nmedian of a training step\n\n{picture(seconds)}\n")
    print(
        f"Over reducers a step was {ratio:.2f} times as fast as over Gloo's ring. Theory says 1.5 for 4 workers."
    )
    print("All gradients were checked, and all workers have the same weights.")


if __name__ == "__main__":
    main()
