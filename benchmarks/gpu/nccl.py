"""NCCL's ring against reducers on shaped links, with tensors on a GPU that several ranks may share.

    python -m benchmarks.gpu.nccl --workers 4 --rate 500 --size 64MiB

NCCL may only use sockets here (`benchmarks.gpu.nccl_ranks`), and every rank has a network namespace. The
logs of NCCL are read and printed. A time is marked (*) if they do not show a ring, the protocol Simple
and the transport NET/Socket.

Ranks that share a GPU take turns on it, and NCCL's kernels wait for the network on the GPU. So the same
comparison first runs on loopback, where no link limits it. A time on shaped links only says something
about the network if the time on loopback was at most half as long (`row.CLEARLY_FASTER`). Otherwise it
is also marked. Both contenders take turns on the same processes, and every whole result is compared with
the exact sum. Needs a GPU, root and iproute2, and exits with 2 without them. With `--device cpu` the ring
is Gloo's, which tests the tool itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.gpu import nccl_log
from benchmarks.gpu.nccl_ranks import check_gpus
from benchmarks.lab import environment
from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.network import check_network
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.experiment import Line, effort_of, shape_of
from benchmarks.method.paired import Effort
from benchmarks.method.paired import compare as in_turn
from benchmarks.method.report import Report
from benchmarks.method.row import Row

CONTENDERS = ("tcp", "ring")


def compare(shape: Shape, effort: Effort, size_bytes: int) -> Row:
    """Compare both contenders on loopback, and then on the links of the shape if it has any.

    Raises:
        GpuMissing: there is no GPU, or no NCCL.
        NetworkUnavailable: this machine cannot shape links.
    """
    if shape.device == "cuda":
        check_gpus(1)
    if shape.link is not None:
        check_network()  # fails now, not after minutes on loopback
    unshaped = _row(replace(shape, link=None, sockets=True), effort, size_bytes, {})
    if shape.link is None:
        return unshaped
    return _row(
        shape,
        effort,
        size_bytes,
        {name: measurement.turn_s for name, measurement in unshaped.measured.items()},
    )


def _row(shape: Shape, effort: Effort, size_bytes: int, unshaped_s: Mapping[str, float]) -> Row:
    with running(shape) as cluster:
        cluster.ranks.load(AllReduce, size_bytes // 4, 1)
        measured = in_turn(cluster, CONTENDERS, effort)
        log = nccl_log.read(cluster.ranks.nccl_logs()) if shape.device == "cuda" else None
        return Row(cluster.shape, "all-reduce", size_bytes, 1, measured, unshaped_s=unshaped_s, nccl=log)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    line = Line(
        "gpu.nccl",
        __doc__,
        workers=4,
        reducers=None,
        rate=500.0,
        unshaped=False,
        size="64MiB",
        device="cuda",
        rounds=5,
        warmup=2,
        json=None,
    )
    given = line.parse_args(argv)
    if given.workers < 2 or given.reducers < 1:
        line.error("--workers must be at least 2, --reducers 1")
    return given


def main() -> None:
    given = parse()
    shape = shape_of(given)
    with ending_well("nccl"):
        row = compare(shape, effort_of(given), given.size)
    report = Report(rows=[row])
    print(environment.summary(report.environment))
    report.show(given.json)
    if row.nccl is not None:
        print("\n".join(["", "rank 0's NCCL:", *row.nccl.lines]))


if __name__ == "__main__":
    main()
