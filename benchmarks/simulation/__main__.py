"""Times of all-reduces on simulated links, with the real cores of ranks and reducers.

    python -m benchmarks.simulation --workers 4 --reducers 0,1,2,3,4 --rate 200 --colocated
    python -m benchmarks.simulation --workers 16 --reducers 16 --rate 10000 --size 256MiB --rounds 20 --cpu 0

Next to each time are the best time that the links allow (`reduction/shares.py`), and its speed relative to a
perfect ring. Connections are paced like real ones, according to their losses. If links are the bottleneck,
the simulation agrees with the lab within 10 %. It is too optimistic with many losses, and if processes have
to share cores, which is not simulated.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.lab.traffic import Link
from benchmarks.method.experiment import Line, listed, parts, table
from benchmarks.simulation.world import Setting, ideal, simulate


def parse() -> argparse.Namespace:
    line = Line("simulation", __doc__, workers=4, rate=200.0, size="64MiB", rounds=6)
    add = line.add_argument
    reducers = "reducers on separate hosts; several: comma-separated"
    add("--reducers", type=listed(int), default=[4], help=reducers)
    add("--colocated", action="store_true", help="the workers' hosts have reducers too")
    add("--slower", type=parts, default=(), help="hosts with slower links: r0=0.5,w1=0.25")
    add("--queue", type=float, default=1.0, help="queue of a link in ms")
    add("--delay", type=float, default=0.0, help="ms from host to host, one way")
    add("--cpu", type=float, default=1.0, help="CPU time as a fraction of that of plain Python; 0: none")
    return line.parse_args()


COLUMNS = {
    "n, k": lambda row: f"{row['setting'].workers}, {row['setting'].reducers}",
    "queue": lambda row: f"{row['link'].queue_bytes >> 10} KiB, {row['link'].queue_ms:.3g} ms",
    "ms": lambda row: f"{row['taken'] * 1e3:.0f}",
    "best, ms": lambda row: f"{row['best'] * 1e3:.0f}",
    "x ring": lambda row: f"{row['ring'] / row['taken']:.2f}",
    "best, x ring": lambda row: f"{row['ring'] / row['best']:.2f}",
    "chunk, KiB": lambda row: f"{row['outcome'].chunk_bytes >> 10}",
    "lost, %": lambda row: f"{row['outcome'].lost * 100:.2f}",
    "took, s": "{seconds:.1f}",
}


def main() -> None:
    arguments = parse()
    link = Link(rate_mbit=arguments.rate, latency_ms=arguments.queue, delay_ms=arguments.delay)
    rows = []
    for reducers in arguments.reducers:
        setting = Setting(
            workers=arguments.workers,
            reducers=reducers,
            link=link,
            colocated=arguments.colocated,
            slower=arguments.slower,
            cpu=arguments.cpu,
        )
        begun = time.monotonic()
        outcome = simulate(setting, arguments.size, arguments.rounds)
        best, ring = (each * arguments.size for each in ideal(setting))
        row = {"setting": setting, "link": link, "outcome": outcome, "best": best, "ring": ring}
        row["taken"] = statistics.median(outcome.times_s[1:] or outcome.times_s)
        rows.append(row | {"seconds": time.monotonic() - begun})
    print("\n".join(table(COLUMNS, rows)))


if __name__ == "__main__":
    main()
