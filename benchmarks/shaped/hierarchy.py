"""Several ranks per node on shaped links: hierarchical mode, flat mode and Gloo's ring over all ranks take turns.

    python -m benchmarks.shaped.hierarchy --nodes 4 --local 2 --rate 100 --size 64MiB --rounds 5
    python -m benchmarks.shaped.hierarchy --train --nodes 4 --local 2 --rate 100 --rounds 5

Each node is a separate host with one link, which its ranks share. The ranks of a node exchange data
over the node's loopback. A turn is one all-reduce, whose whole result is compared with the exact sum.
With `--train` a turn is one step of the transformer of `benchmarks.loads.models` under DDP: with our
hook in both modes, with DDP's own all-reduce over Gloo, and without any communication, which is the
upper bound. Our gradients must then have the exact bits, and all ranks must have the same weights after
every step.

`x ring` and `x flat` are the speed of a contender relative to the ring and to flat mode, as the median
and quartiles over neighbouring turns. `bytes per node` are the bytes on a node's link in both
directions, including headers, relative to the bytes of the tensor or of all gradients. Needs root and
iproute2.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.experiment import Cell, Line, effort_of, show, size
from benchmarks.method.paired import Measurement, compare
from benchmarks.method.table import quartiles, spread

_FLAT, _RING, _NOOP = "tcp", "ring", "noop"
_REDUCE = {"hierarchical": "hierarchical", _FLAT: "flat", _RING: "Gloo ring"}
_TRAIN = {"hierarchical": "hierarchical", _FLAT: "flat", _RING: "Gloo DDP", _NOOP: "no communication"}


def parse() -> argparse.Namespace:
    # Two rounds do not count, since DDP creates new buckets after the first step.
    line = Line("shaped.hierarchy", __doc__, reducers=None, rate=100.0, rounds=5, warmup=2, json=None)
    line.add_argument("--nodes", type=int, default=4)
    line.add_argument("--local", type=int, default=2, help="ranks of each node")
    load = line.add_mutually_exclusive_group()
    load.add_argument("--size", type=size, default="64MiB", help="of the tensors")
    load.add_argument("--train", action="store_true", help="steps of a training, not single all-reduces")
    arguments = line.parse_args()
    if arguments.train:
        arguments.size = gradient_bytes(NARROW["transformer"])
    if arguments.reducers is None:
        arguments.reducers = arguments.nodes
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Measurement]:
    """Let the contenders take turns, and check every result."""
    shape = Shape(
        workers=arguments.nodes * arguments.local,
        reducers=arguments.reducers,
        link=Link(rate_mbit=arguments.rate),
        local=arguments.local,
    )
    contenders = list(_names(arguments))
    with running(shape, with_goodput=False) as cluster:
        if arguments.train:
            cluster.ranks.load(Training, contenders)
        else:
            cluster.ranks.load(AllReduce, arguments.size // 4, 1)
        return compare(cluster, contenders, effort_of(arguments))


def _names(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the contenders' names in the table."""
    return _TRAIN if arguments.train else _REDUCE


def rows_of(arguments: argparse.Namespace, measured: dict[str, Measurement]) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    rows = []
    for name, measurement in measured.items():
        traffic, turns = measurement.traffic, len(measurement.turns)
        carried = (traffic.worker_tx_bytes + traffic.worker_rx_bytes) / arguments.nodes / turns
        rows.append(
            {
                "contender": _names(arguments)[name],
                "turn_s": quartiles(measurement.turns),
                "times_as_fast_as_ring": measurement.times_as_fast_as(measured[_RING]),
                "times_as_fast_as_flat": measurement.times_as_fast_as(measured[_FLAT]),
                "node_bytes_by_tensor": carried / arguments.size,
                "algbw_mbit_s": 8e-6 * arguments.size / measurement.turn_s,
                "worker_cpu_s": measurement.worker_cpu_s / turns,
            }
        )
    return rows


def columns_of(arguments: argparse.Namespace) -> dict[str, Cell]:
    """Return the columns of the table."""
    turn = "step" if arguments.train else "turn"
    return {
        "": "{contender}",
        f"s per {turn} (quartiles)": lambda row: spread(row["turn_s"]),
        "x ring (quartiles)": lambda row: spread(row["times_as_fast_as_ring"]),
        "x flat (quartiles)": lambda row: spread(row["times_as_fast_as_flat"]),
        "bytes per node": "{node_bytes_by_tensor:.3f}",
        "algbw Mbit/s": "{algbw_mbit_s:.0f}",
        f"worker CPU s/{turn}": "{worker_cpu_s:.2f}",
    }


def main() -> None:
    arguments = parse()
    # Slow links are intended here. Warnings about slow ranks would hide the table.
    os.environ.setdefault("REDUCTION_STALL_WARN_S", "60")
    with ending_well("hierarchy"):
        measured = measure(arguments)
    load = "a training with {} bytes of gradients" if arguments.train else "all-reduces of {} bytes"
    title = (
        f"{arguments.nodes} nodes x {arguments.local} ranks, {arguments.reducers} reducers, "
        f"{load.format(arguments.size)}, {arguments.rate:g} Mbit/s each way"
    )
    show(arguments, columns_of(arguments), rows_of(arguments, measured), title)
    if _NOOP in measured:
        share = measured[_RING].times_as_fast_as(measured[_NOOP])
        print(f"\na step without communication takes {spread(share)} of Gloo DDP's")


if __name__ == "__main__":
    main()
