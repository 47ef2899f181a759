"""Several ranks per node on shaped links: hierarchical mode, flat mode, and Gloo's ring over all ranks, in turn.

    python -m benchmarks.shaped.hierarchy --nodes 4 --local 2 --rate 100 --size 64MiB --rounds 5
    python -m benchmarks.shaped.hierarchy --train --nodes 4 --local 2 --rate 100 --rounds 5
    python -m benchmarks.shaped.hierarchy --hsdp --nodes 4 --local 2 --rate 100 --rounds 5

Each node is a host of its own with one link, which its ranks share. The ranks of a node exchange
data over the node's loopback. A turn is one all-reduce, whose result is compared as a whole with
the exact sum. With `--train` a turn is one step of the transformer of `benchmarks.loads.models`
under DDP: with our hook in both modes, with DDP's own all-reduce over Gloo, and without any
communication, which is the ceiling. There our gradients must have the exact bits, and all ranks
must have the same weights after every step. With `--hsdp` that model is sharded within a node, and
copied across nodes: by the backend "reduction", or by Gloo.

`x ring` and `x flat` say how many times as fast as the ring and as flat mode a contender is: the
median over neighbouring turns, and quartiles. `bytes per node` are the bytes on a node's link in
both directions, headers included, by those of the tensor or of all gradients. Needs root and
iproute2.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.lab.cluster import Cluster, Shape
from benchmarks.lab.ending import ending_well
from benchmarks.lab.network import Network
from benchmarks.lab.ranks import Ranks
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.hsdp import Hsdp
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method import results
from benchmarks.method.paired import Effort, Measurement, compare
from benchmarks.method.records import Quartiles, quartiles
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import size

_FLAT, _RING, _NOOP = "tcp", "ring", "noop"
_REDUCE = {"hierarchical": "hierarchical", _FLAT: "flat", _RING: "Gloo ring"}
_HSDP = {"group": "backend", _RING: "Gloo"}
_TRAIN = {"hierarchical": "hierarchical", _FLAT: "flat", _RING: "Gloo DDP", _NOOP: "no communication"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shaped.hierarchy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--local", type=int, default=2, help="ranks of each node")
    parser.add_argument("--reducers", type=int, help="as many as nodes by default")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of every link, each way")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--size", type=size, default=size("64MiB"), help="of the tensors")
    load.add_argument("--hsdp", action="store_true", help="steps of HSDP, by the backend and by Gloo")
    load.add_argument("--train", action="store_true", help="steps of a training, not single all-reduces")
    parser.add_argument("--rounds", type=int, default=5)
    # There are two, since DDP makes new buckets after the first step.
    parser.add_argument("--warmup", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    if arguments.train or arguments.hsdp:
        arguments.size = gradient_bytes(NARROW["transformer"])
    if arguments.reducers is None:
        arguments.reducers = arguments.nodes
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Measurement]:
    """Let the contenders take turns, and check every result."""
    nodes, reducers, link = arguments.nodes, arguments.reducers, Link(rate_mbit=arguments.rate)
    effort = Effort(rounds=arguments.rounds, budget_s=float("inf"), warmup_rounds=arguments.warmup)
    with ExitStack() as stack:
        network = stack.enter_context(Network(nodes, reducers, link))
        running = stack.enter_context(closing(Reducers(reducers, network.reducers)))
        hosts = [host for host in network.workers for _ in range(arguments.local)]
        ranks = stack.enter_context(closing(Ranks(len(hosts), running.addresses, hosts=hosts)))
        shape = Shape(workers=len(hosts), reducers=reducers, link=link)
        contenders = list(_names(arguments))
        if arguments.hsdp:
            ranks.load(Hsdp, contenders, nodes)
        elif arguments.train:
            ranks.load(Training, contenders)
        else:
            ranks.load(AllReduce, arguments.size // 4, 1)
        return compare(Cluster(shape, ranks, running, network, network.link), contenders, effort)


def _names(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what the table calls the contenders."""
    return _HSDP if arguments.hsdp else _TRAIN if arguments.train else _REDUCE


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
                "times_as_fast_as_flat": measurement.times_as_fast_as(measured.get(_FLAT, measured[_RING])),
                "node_bytes_by_tensor": carried / arguments.size,
                "algbw_mbit_s": 8e-6 * arguments.size / measurement.turn_s,
                "worker_cpu_s": measurement.worker_cpu_s / turns,
            }
        )
    return rows


def lines(arguments: argparse.Namespace, measured: dict[str, Measurement]) -> list[str]:
    """Return the table, and how long a step without communication takes compared with Gloo's."""
    turn = "step" if arguments.train or arguments.hsdp else "turn"
    head = ["", f"s per {turn} (quartiles)", "x ring (quartiles)", "x flat (quartiles)", "bytes per node"]
    head += ["algbw Mbit/s", f"worker CPU s/{turn}"]
    cells = [
        [
            row["contender"],
            _spread(row["turn_s"]),
            _spread(row["times_as_fast_as_ring"]),
            _spread(row["times_as_fast_as_flat"]),
            f"{row['node_bytes_by_tensor']:.3f}",
            f"{row['algbw_mbit_s']:.0f}",
            f"{row['worker_cpu_s']:.2f}",
        ]
        for row in rows_of(arguments, measured)
    ]
    if arguments.hsdp:  # there is no flat mode
        head, cells = head[:3] + head[4:], [row[:3] + row[4:] for row in cells]
    table = markdown(head, cells)
    if _NOOP in measured:
        share = measured[_RING].times_as_fast_as(measured[_NOOP])
        table += ["", f"a step without communication takes {_spread(share)} of Gloo DDP's"]
    return table


def _spread(value: Quartiles) -> str:
    low, median, high = value
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    arguments = parse()
    # Slow links are intended here. Warnings about slow ranks would hide the table.
    os.environ.setdefault("REDUCTION_STALL_WARN_S", "60")
    with ending_well("hierarchy"):
        measured = measure(arguments)
    load = "a training with {} bytes of gradients" if arguments.train else "all-reduces of {} bytes"
    print(
        f"{arguments.nodes} nodes x {arguments.local} ranks, {arguments.reducers} reducers, "
        f"{load.format(arguments.size)}, {arguments.rate:g} Mbit/s each way"
    )
    print("\n".join(lines(arguments, measured)))
    if arguments.json is not None:
        settings = {
            "nodes": arguments.nodes,
            "local": arguments.local,
            "reducers": arguments.reducers,
            "rate_mbit": arguments.rate,
            "queue_ms": Link(rate_mbit=arguments.rate).queue_ms,
            "size_bytes": arguments.size,
            "rounds": arguments.rounds,
        }
        results.write(arguments.json, settings, rows_of(arguments, measured))


if __name__ == "__main__":
    main()
