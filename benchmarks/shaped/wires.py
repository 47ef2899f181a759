"""Wire dtypes on shaped links, against our own float32 in the same run.

    python -m benchmarks.shaped.wires --workers 4 --rate 100 --size 64MiB --rounds 5

`bytes` are the bytes on a worker's link in both directions, by those of the tensor. `x float32`
says how many times as fast as float32 a wire dtype is: the median over neighbouring turns, and
quartiles. `x fewer` says how many times fewer bytes it sends. Every result is checked to the last
bit. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import WIRES
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method import results
from benchmarks.method.paired import Effort, compare
from benchmarks.method.row import Row
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import names, size

_BASELINE = "tcp"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shaped.wires",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reducers", type=int, help="as many as workers by default")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of every link, each way")
    parser.add_argument("--size", type=size, default=size("64MiB"), help="of the tensors")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wires", type=names, default=list(WIRES), help="comma-separated")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def rows_of(row: Row) -> list[dict[str, Any]]:
    """Return a row for each wire dtype, compared with float32."""
    return [
        {
            "wire": "float32" if name == _BASELINE else name,
            "turn_s": measurement.turn_s,
            "times_as_fast": measurement.times_as_fast_as(row.measured[_BASELINE]),
            "bytes_by_tensor": _bytes(row, name),
            "times_fewer_bytes": _bytes(row, _BASELINE) / _bytes(row, name),
            "worker_cpu_s_per_gb": row.worker_cpu_s_per_gb(name),
        }
        for name, measurement in row.measured.items()
    ]


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row of the printed table."""
    low, median, high = row["times_as_fast"]
    return [
        row["wire"],
        f"{1e3 * row['turn_s']:.0f}",
        f"{median:.2f} ({low:.2f}-{high:.2f})",
        f"{row['bytes_by_tensor']:.3f}",
        f"{row['times_fewer_bytes']:.1f}",
        f"{row['worker_cpu_s_per_gb']:.2f}",
    ]


def _bytes(row: Row, name: str) -> float:
    wire = row.wire(name)
    assert wire is not None
    return wire["worker_tx"] + wire["worker_rx"]


def main() -> None:
    arguments = parse()
    link = Link(rate_mbit=arguments.rate)
    reducers = arguments.workers if arguments.reducers is None else arguments.reducers
    shape = Shape(workers=arguments.workers, reducers=reducers, link=link)
    effort = Effort(rounds=arguments.rounds, budget_s=float("inf"), warmup_rounds=1)
    contenders = [_BASELINE, *arguments.wires]
    with ending_well("wires"):
        with running(shape, with_goodput=False) as cluster:
            cluster.ranks.load(AllReduce, arguments.size // 4, 1)
            row = Row.of(cluster, "all-reduce", arguments.size, 1, compare(cluster, contenders, effort))
    print(f"n={shape.workers} k={shape.reducers}, {arguments.size} bytes, {arguments.rate:g} Mbit/s")
    rows = rows_of(row)
    head = ["wire", "ms per turn", "x float32 (quartiles)", "bytes", "x fewer", "worker CPU s/GB"]
    print("\n".join(markdown(head, [cells(each) for each in rows])))
    if arguments.json is not None:
        settings = {
            "workers": shape.workers,
            "reducers": shape.reducers,
            "rate_mbit": arguments.rate,
            "queue_ms": link.queue_ms,
            "size_bytes": arguments.size,
            "rounds": arguments.rounds,
        }
        results.write(arguments.json, settings, rows)


if __name__ == "__main__":
    main()
