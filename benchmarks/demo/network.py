"""The demonstration on a network: a small transformer trains with DDP over reducers, and over Gloo's ring.

    sudo make demo-network        or, as root,        python -m benchmarks.demo.network

Each of four workers and four reducers has its own host (a network namespace), with links of 200
Mbit/s in each direction. The same processes train the model in both ways, alternating step by step,
so that other load on the machine slows both. Every gradient is checked: over reducers it must have
the bits of the sum in rank order. This needs root, iproute2 and Linux.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.ending import MISSING, ending_well
from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.lab.traffic import Link
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.experiment import Line, at_least
from benchmarks.method.paired import turn
from benchmarks.method.table import quartiles

WORKERS, RATE_MBIT = 4, 200
STEPS = 6
#: DDP makes new buckets after the first step, and our credit adapts to the links.
WARMUP_STEPS = 2
NAMES = {"tcp": "reducers", "ring": "Gloo's ring", "noop": "no communication"}
#: Characters of the longest bar.
WIDTH = 48
#: If the quartiles of our steps differ by more than this factor, other processes are using the
#: cores. Without other load a factor of 1.01 was seen.
BUSY_FACTOR = 1.15


def train(cluster: Cluster, steps: int) -> dict[str, list[float]]:
    """Return the seconds of each step on the slowest rank, by contender, and print them as they are measured."""
    ranks = cluster.ranks
    ranks.load(Training, list(NAMES))
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for step in range(WARMUP_STEPS + steps):
        before = f"step {step + 1} of {WARMUP_STEPS + steps}:"
        for name, label in NAMES.items():
            slowest = max(sample.seconds[0] for sample in turn(ranks, name))
            print(f"{before}  {label} {slowest:.2f} s", end="", flush=True)
            before = ""
            if step >= WARMUP_STEPS:
                seconds[name].append(slowest)
        print("" if step >= WARMUP_STEPS else "  (warm-up)", flush=True)
    return seconds


def picture(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a bar for each contender, as long as its median step."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    longest = max(medians.values())
    return "\n".join(
        f"{NAMES[name]:>16}  {'█' * max(1, round(WIDTH * median / longest))} {median * 1e3:.0f} ms"
        for name, median in medians.items()
    )


def conclusion(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return the result in one line, and a warning if the machine was busy."""
    ratio = statistics.median(ring / ours for ring, ours in zip(seconds["ring"], seconds["tcp"], strict=True))
    # A ring sends each byte 2(n-1)/n times over a link. With reducers it crosses once.
    theory = 2 * (WORKERS - 1) / WORKERS
    text = (
        f"Over reducers a training step was {ratio:.2f} times as fast as over Gloo's ring "
        f"(theory for {WORKERS} workers: {theory:g})."
    )
    low, _, high = quartiles(seconds["tcp"])
    if high > BUSY_FACTOR * low:
        busy = "This machine is busy: steps of the same kind took "
        text = f"{busy}{low:.2f} to {high:.2f} s (quartiles). Run it again on an idle machine.\n{text}"
    return text


def main() -> None:
    line = Line("demo.network", __doc__)
    count = "how many steps of each kind count (%(default)s)"
    line.add_argument("--steps", type=at_least(1), default=STEPS, help=count)
    steps = line.parse_args().steps
    try:
        check_network()
    except NetworkUnavailable as error:
        print(f"demo-network: {error}. As root: `sudo make demo-network`.", file=sys.stderr)
        sys.exit(MISSING)
    began = time.monotonic()
    shape = Shape(workers=WORKERS, reducers=WORKERS, link=Link(rate_mbit=RATE_MBIT))
    megabytes = gradient_bytes(NARROW["transformer"]) / 1e6
    print(
        f"{WORKERS} workers and {WORKERS} reducers, each on a host of its own, links of {RATE_MBIT} Mbit/s each way,\n"
        f"{megabytes:.0f} MB of gradients per step. Starting them takes some seconds ...",
        flush=True,
    )
    with ending_well("demo-network"), running(shape, with_goodput=False) as cluster:
        seconds = train(cluster, steps)
    print("\nAll gradients were checked, all workers have the same weights, and all hosts are gone", end="")
    print(f" ({time.monotonic() - began:.0f} s).\n\nmedian of a training step\n\n{picture(seconds)}\n")
    print(conclusion(seconds))


if __name__ == "__main__":
    main()
