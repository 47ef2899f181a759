"""How long all-reduces take on links that are simulated, with the real cores of ranks and reducers.

    python -m benchmarks.simulation --workers 4 --reducers 0,1,2,3,4 --rate 200 --colocated
    python -m benchmarks.simulation --workers 16 --reducers 16 --rate 10000 --size 256MiB --rounds 20 --cpu 0

Beside each time stands the one that the links allow (`reduction/shares.py`), and how many times as
fast that is as a perfect ring. Connections are paced as real ones are, from what they lose. Where links are
what limits, it agrees with the lab within 10 %. It is too good where much is lost, and where processes
have to share cores, which is not simulated.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.lab.traffic import Link
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import counts, parts, size
from benchmarks.simulation.world import Setting, ideal, simulate


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--reducers",
        type=counts,
        default=[4],
        help="on hosts of their own; several: comma-separated",
    )
    parser.add_argument("--colocated", action="store_true", help="the workers' hosts have reducers too")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of every link, each way")
    parser.add_argument("--slower", type=parts, default=(), help="hosts with slower links: r0=0.5,w1=0.25")
    parser.add_argument("--queue", type=float, default=1.0, help="queue of a link in ms")
    parser.add_argument("--delay", type=float, default=0.0, help="ms from host to host, one way")
    parser.add_argument("--size", type=size, default=size("64MiB"), help="of the tensors")
    parser.add_argument("--rounds", type=int, default=6, help="the first one does not count")
    parser.add_argument(
        "--cpu", type=float, default=1.0, help="part of the CPU time of plain Python; 0: none"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    rows = []
    for reducers in arguments.reducers:
        setting = Setting(
            workers=arguments.workers,
            reducers=reducers,
            link=Link(rate_mbit=arguments.rate, latency_ms=arguments.queue),
            colocated=arguments.colocated,
            slower=arguments.slower,
            delay_s=arguments.delay / 1000,
            cpu=arguments.cpu,
        )
        queue_bytes = setting.link.queue_bytes
        begun = time.monotonic()
        outcome = simulate(setting, arguments.size, arguments.rounds)
        best, ring = (each * arguments.size for each in ideal(setting))
        taken = statistics.median(outcome.times_s[1:] or outcome.times_s)
        rows.append(
            [
                f"{setting.workers}, {reducers}",
                f"{queue_bytes >> 10} KiB, {queue_bytes / arguments.rate / 125:.3g} ms",
                f"{taken * 1e3:.0f}",
                f"{best * 1e3:.0f}",
                f"{ring / taken:.2f}",
                f"{ring / best:.2f}",
                f"{outcome.chunk_bytes >> 10}",
                f"{outcome.lost * 100:.2f}",
                f"{time.monotonic() - begun:.1f}",
            ]
        )
    head = ["n, k", "queue", "ms", "best, ms", "x ring", "best, x ring", "chunk, KiB", "lost, %", "took, s"]
    print("\n".join(markdown(head, rows)))


if __name__ == "__main__":
    main()
