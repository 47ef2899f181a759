"""Wire dtypes on shaped links, against our own float32 in the same run.

    python -m benchmarks.shaped.wires --workers 4 --rate 100 --size 64MiB --rounds 5

`bytes` is what a worker's link carried both ways, in bytes of the tensor; `x float32` is the quotient of neighbouring
turns (quartiles), `x fewer` that of the bytes. Every result is checked to the last bit. Needs root and iproute2.
"""

from __future__ import annotations

import argparse

from benchmarks.lab.cluster import Shape
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import WIRES
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import Effort
from benchmarks.method.row import Row
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import names, row_of, size

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
    return parser.parse_args()


def lines(row: Row) -> list[str]:
    """Return the table."""
    head = ["wire", "ms per turn", "x float32 (quartiles)", "bytes", "x fewer", "worker CPU s/GB"]
    cells = []
    for name, measurement in row.measured.items():
        low, median, high = measurement.times_as_fast_as(row.measured[_BASELINE])
        cells.append(
            [
                "float32" if name == _BASELINE else name,
                f"{1e3 * measurement.turn_s:.0f}",
                f"{median:.2f} ({low:.2f}-{high:.2f})",
                f"{_bytes(row, name):.3f}",
                f"{_bytes(row, _BASELINE) / _bytes(row, name):.1f}",
                f"{row.worker_cpu_s_per_gb(name):.2f}",
            ]
        )
    return markdown(head, cells)


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
        row = row_of(shape, effort, contenders, size_bytes=arguments.size, iterations=1, with_goodput=False)
    print(f"n={shape.workers} k={shape.reducers}, {arguments.size} bytes, {arguments.rate:g} Mbit/s")
    print("\n".join(lines(row)))


if __name__ == "__main__":
    main()
