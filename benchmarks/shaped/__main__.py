"""All-reduces on shaped links, with settings from the command line.

    python -m benchmarks.shaped --workers 4 --reducers 4 --rate 500 --size 64MiB --contenders tcp,ring
    python -m benchmarks.shaped --workers 4 --reducers 0,1,2,3,4 --rate 200 --contenders colocated,ring
    REDUCTION_CHUNK_BYTES=65536 REDUCTION_CREDIT_BYTES=262144 python -m benchmarks.shaped --contenders tcp

Prints a row of the benchmarks' table for each combination of reducers, rate, latency and size; README.md
defines the columns. Settings of the plug-in come from the environment. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import OURS, TRANSPORTS
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import Effort, compare
from benchmarks.method.report import Report
from benchmarks.method.row import Row

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def size(text: str) -> int:
    """Return the bytes of 64MiB, 4KiB or 4096."""
    match = re.fullmatch(r"(\d+) ?(|KiB|MiB)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 64MiB, 4KiB or 4096")
    return int(match[1]) * _UNITS[match[2]]


def names(text: str) -> list[str]:
    """Return the contenders of a comma-separated list."""
    known = (*OURS, "ring")
    listed = text.split(",")
    if unknown := [name for name in listed if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown} not among {', '.join(known)}")
    return listed


def sizes(text: str) -> list[int]:
    """Return the bytes of each size of a comma-separated list."""
    return [size(part) for part in text.split(",")]


def counts(text: str) -> list[int]:
    """Return the whole numbers of a comma-separated list."""
    return [int(part) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """Return the numbers of a comma-separated list."""
    return [float(part) for part in text.split(",")]


def parts(text: str) -> tuple[tuple[str, float], ...]:
    """Return the hosts and numbers of r0=0.5,w1=0.25."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    return tuple((host, float(part)) for host, _, part in pairs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shaped",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    link = Link(rate_mbit=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--reducers", type=counts, help="as many as workers by default; several: comma-separated"
    )
    rates = "Mbit/s of every link, each way; several: comma-separated"
    parser.add_argument("--rate", type=numbers, default=[link.rate_mbit], help=rates)
    latencies = "queue of a link in ms; several: comma-separated"
    parser.add_argument("--latency", type=numbers, default=[link.latency_ms], help=latencies)
    parser.add_argument("--burst", type=size, default=link.burst_bytes, help="of a link")
    parser.add_argument("--congestion", default="", help="TCP's algorithm; else cubic, or reno")
    parser.add_argument(
        "--size", type=sizes, default="64MiB", help="of the tensors; several: comma-separated"
    )
    parser.add_argument("--iterations", type=int, default=1, help="collectives per turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1, help="rounds that do not count")
    parser.add_argument("--contenders", type=names, default=[*TRANSPORTS, "ring"], help="comma-separated")
    parser.add_argument(
        "--slower",
        type=parts,
        default=(),
        help="hosts with slower links: r0=0.5,w1=0.25; all are told their rates",
    )
    parser.add_argument("--no-iperf", action="store_true", help="do not measure what the link carries")
    parser.add_argument("--json", type=Path, help="also write what `make bench` writes")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> Report:
    reducers = arguments.reducers or [arguments.workers]
    effort = Effort(rounds=arguments.rounds, budget_s=float("inf"), warmup_rounds=arguments.warmup)
    report = Report()
    columns = (reducers, arguments.rate, arguments.latency, arguments.size)
    for k, rate, latency, size_bytes in product(*columns):
        link = Link(
            rate_mbit=rate,
            latency_ms=latency,
            burst_bytes=arguments.burst,
            congestion=arguments.congestion,
        )
        report.rows.append(
            row_of(
                Shape(workers=arguments.workers, reducers=k, link=link, slower=arguments.slower),
                effort,
                arguments.contenders,
                size_bytes=size_bytes,
                iterations=arguments.iterations,
                with_goodput=not arguments.no_iperf,
            )
        )
    return report


def row_of(
    shape: Shape,
    effort: Effort,
    contenders: Sequence[str],
    *,
    size_bytes: int,
    iterations: int,
    with_goodput: bool,
) -> Row:
    """Let the contenders reduce tensors of that size."""
    with running(shape, with_goodput=with_goodput) as cluster:
        cluster.ranks.load(AllReduce, size_bytes // 4, iterations)
        measured = compare(cluster, contenders, effort)
        return Row.of(cluster, "all-reduce", size_bytes, iterations, measured)


def main() -> None:
    arguments = parse()
    with ending_well("shaped"):
        report = measure(arguments)
    if arguments.json is not None:
        report.write(arguments.json)
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
