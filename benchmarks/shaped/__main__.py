"""All-reduces on shaped links, with settings from the command line.

    python -m benchmarks.shaped --workers 4 --reducers 4 --rate 500 --size 64MiB --contenders tcp,ring
    python -m benchmarks.shaped --workers 4 --reducers 0,1,2,3,4 --rate 200 --contenders colocated,ring
    python -m benchmarks.shaped --workers 4 --rate 200 --train vgg16 --contenders tcp,ring --warmup 2
    python -m benchmarks.shaped --rate 500 --later r0=0.333 --contenders tcp,ring
    python -m benchmarks.shaped --rate 500 --two-jobs --contenders tcp,ring
    REDUCTION_CHUNK_BYTES=65536 REDUCTION_CREDIT_BYTES=262144 python -m benchmarks.shaped --contenders tcp

Measures each combination of reducers, rate, latency, delay and size, shows it with the time left, and ends with the
benchmarks' table, even if it is interrupted. README.md defines the columns. Settings of the plug-in come from the
environment. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.lab.background import Bursts
from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ranks import OURS, TRANSPORTS
from benchmarks.lab.traffic import Link
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.loads.training import Training
from benchmarks.method.experiment import Line, among, effort_of, listed, parts, show, size
from benchmarks.method.paired import compare
from benchmarks.method.progress import Progress, kept, weight
from benchmarks.method.report import Report
from benchmarks.method.row import Row
from benchmarks.shaped import jobs


def bursts(text: str) -> Bursts:
    """Return the background traffic of 3:0.3:2."""
    flows, on_s, off_s = text.split(":")
    return Bursts(int(flows), float(on_s), float(off_s))


def parse() -> argparse.Namespace:
    line = Line("shaped", __doc__, workers=4, rounds=5, warmup=1, json=None)
    add, link = line.add_argument, Link(rate_mbit=500)
    add("--size", type=listed(size), default="64MiB", help="size of the tensors; several: comma-separated")
    add("--reducers", type=listed(int), help="by default as many as workers; several: comma-separated")
    lists = {
        "rate": (link.rate_mbit, "Mbit/s of every link in each direction"),
        "latency": (link.latency_ms, "queue of a link in ms"),
        "delay": (link.delay_ms, "ms from a host to the switch, half of a round trip"),
    }
    for name, (value, what) in lists.items():
        add(f"--{name}", type=listed(float), default=[value], help=f"{what}; several: comma-separated")
    segments = (
        "maximum number of segments that TCP passes on as one packet; by default as many as fit a burst"
    )
    add("--segments", type=int, default=0, help=segments)
    processes = "processes of each reducer; 0: the default of `reducer serve`"
    add("--processes", type=int, default=1, help=processes)
    add("--burst", type=size, default=link.burst_bytes, help="burst size of a link")
    add("--congestion", default="", help="TCP's congestion control; by default cubic, or else reno")
    contenders = [*TRANSPORTS, "ring"]
    add("--contenders", type=among((*OURS, "ring")), default=contenders, help="comma-separated")
    slower = "hosts with slower links: r0=0.5,w1=0.25; all hosts know their rates"
    add("--slower", type=parts, default=(), help=slower)
    later = "measure again with these links slower, unknown to the hosts, and again with all links restored"
    add("--later", type=parts, help=later)
    background = (
        "other traffic between the first two workers; ON and OFF: mean seconds of a burst and of a pause"
    )
    add("--background", type=bursts, metavar="FLOWS:ON:OFF", help=background)
    add("--train", choices=tuple(NARROW), help="training steps of this model instead of all-reduces")
    add("--two-jobs", action="store_true", help="two jobs at the same time, compared with each alone")
    add("--no-iperf", action="store_true", help="do not measure what the link carries")
    given = line.parse_args()
    if given.two_jobs and (given.train or given.later):
        line.error("--two-jobs does all-reduces on links that stay as they are")
    return given


def shapes(arguments: argparse.Namespace) -> Iterator[tuple[Shape, int]]:
    """Yield each combination with the size of its tensors."""
    reducers = arguments.reducers or [arguments.workers]
    columns = (reducers, arguments.rate, arguments.latency, arguments.delay, arguments.size)
    for k, rate, latency, delay, size_bytes in product(*columns):
        link = Link(
            rate_mbit=rate,
            latency_ms=latency,
            delay_ms=delay,
            burst_bytes=arguments.burst,
            packet_segments=arguments.segments,
            congestion=arguments.congestion,
        )
        shape = Shape(
            workers=arguments.workers,
            reducers=k,
            link=link,
            processes=arguments.processes,
            slower=arguments.slower,
            background=arguments.background,
        )
        yield shape, size_bytes


def rows_of(arguments: argparse.Namespace, shape: Shape, size_bytes: int) -> Iterator[Row]:
    """Let the contenders reduce tensors or take training steps, and yield a row for each state of the links."""
    effort, contenders, what = effort_of(arguments), arguments.contenders, "all-reduce"
    with running(shape, with_goodput=not arguments.no_iperf) as cluster:
        if arguments.train is None:
            cluster.ranks.load(AllReduce, size_bytes // 4, 1)
        else:
            contenders, what = [*contenders, "noop"], f"training step, {arguments.train}"
            cluster.ranks.load(Training, contenders, arguments.train)
            size_bytes = gradient_bytes(NARROW[arguments.train])
        yield Row(cluster.shape, what, size_bytes, 1, compare(cluster, contenders, effort))
        for later in (arguments.later, ()) if arguments.later else ():
            assert cluster.network is not None
            cluster.network.change(dict(arguments.slower) | dict(later))
            measured = compare(cluster, contenders, replace(effort, warmup_rounds=0))
            name = ", ".join(f"{host} x {part:g}" for host, part in later) or "whole again"
            yield Row(cluster.shape, f"{what}, {name}", size_bytes, 1, measured)


def measure_two_jobs(arguments: argparse.Namespace) -> None:
    """Measure two concurrent jobs in each combination."""
    rows: list[dict[str, Any]] = []
    plans = list(shapes(arguments))
    progress = Progress([weight(*plan) for plan in plans])
    with kept("shaped", lambda: show(arguments, jobs.COLUMNS, rows)):
        for shape, size_bytes in plans:
            rounds = jobs.measure(shape, arguments.contenders, effort_of(arguments), size_bytes)
            rows += jobs.rows_of(shape, rounds)
            progress.done(shape.name)


def main() -> None:
    arguments = parse()
    if arguments.two_jobs:
        return measure_two_jobs(arguments)
    report, plans = Report(), list(shapes(arguments))
    rows_each = 3 if arguments.later else 1
    progress = Progress([weight(*plan) for plan in plans for _ in range(rows_each)])
    with kept("shaped", lambda: report.show(arguments.json)):
        for plan in plans:
            for row in rows_of(arguments, *plan):
                report.rows.append(row)
                progress.done(row.line())


if __name__ == "__main__":
    main()
