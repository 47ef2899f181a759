"""Wire dtypes on shaped links, against our own float32 in the same run.

    python -m benchmarks.shaped.wires --workers 4 --rate 100 --size 64MiB --rounds 5

`bytes` are the bytes on a worker's link in both directions, relative to the bytes of the tensor. `x
float32` is the speed of a wire dtype relative to float32, as the median and quartiles over neighbouring
turns. `x fewer` is the factor by which it sends fewer bytes. Every result is checked to the last bit.
Needs root and iproute2.
"""

from __future__ import annotations

from typing import Any

from benchmarks.lab.cluster import running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import OURS, WIRES
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.experiment import Line, among, effort_of, shape_of, show
from benchmarks.method.paired import compare
from benchmarks.method.row import Row
from benchmarks.method.table import spread

_BASELINE = "tcp"
COLUMNS = {
    "wire": "{wire}",
    "ms per turn": lambda row: f"{1e3 * row['turn_s']:.0f}",
    "x float32 (quartiles)": lambda row: spread(row["times_as_fast"]),
    "bytes": "{bytes_by_tensor:.3f}",
    "x fewer": "{times_fewer_bytes:.1f}",
    "worker CPU s/GB": "{worker_cpu_s_per_gb:.2f}",
}


def rows_of(row: Row) -> list[dict[str, Any]]:
    """Return a row for each wire dtype, compared with float32."""
    figures = {name: row.figures(name) for name in row.measured}
    nbytes = {name: one["wire"]["worker_tx"] + one["wire"]["worker_rx"] for name, one in figures.items()}
    return [
        {
            "wire": "float32" if name == _BASELINE else name,
            "turn_s": measurement.turn_s,
            "times_as_fast": measurement.times_as_fast_as(row.measured[_BASELINE]),
            "bytes_by_tensor": nbytes[name],
            "times_fewer_bytes": nbytes[_BASELINE] / nbytes[name],
            "worker_cpu_s_per_gb": figures[name]["worker_cpu_s_per_gb"],
        }
        for name, measurement in row.measured.items()
    ]


def main() -> None:
    line = Line(
        "shaped.wires", __doc__, workers=4, reducers=None, rate=100.0, size="64MiB", rounds=5, json=None
    )
    line.add_argument("--wires", type=among((*OURS, "ring")), default=list(WIRES), help="comma-separated")
    given = line.parse_args()
    with ending_well("wires"), running(shape_of(given), with_goodput=False) as cluster:
        cluster.ranks.load(AllReduce, given.size // 4, 1)
        measured = compare(cluster, [_BASELINE, *given.wires], effort_of(given, warmup=1))
        row = Row(cluster.shape, "all-reduce", given.size, 1, measured)
    title = f"n={given.workers} k={given.reducers}, {given.size} bytes, {given.rate:g} Mbit/s"
    show(given, COLUMNS, rows_of(row), title)


if __name__ == "__main__":
    main()
