"""How long all-reduces take on links that are simulated, with the real cores of ranks and reducers.

    python -m benchmarks.simulation --workers 4 --reducers 0,1,2,3,4 --rate 200 --colocated
    python -m benchmarks.simulation --workers 64 --reducers 64 --rate 10000 --size 16MiB

Beside each time stands the one that the links allow (`reduction/shares.py`), and how many times as
fast that is as a perfect ring. At n=4 and 200 Mbit/s it agrees with the lab within 2 %. It is too good
where a queue overflows, which is said, and where processes have to share cores, which is not
simulated.
"""

from __future__ import annotations

import argparse
import statistics
import time

from reduction.shares import Machine, ring_time, split

from benchmarks.lab.traffic import Link
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import counts, parts, size
from benchmarks.simulation.world import LOSSLESS_MS, Setting, simulate
from reducer.planner.formulas import OVERHEAD


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
    parser.add_argument("--queue", type=float, default=LOSSLESS_MS, help="queue of a link in ms")
    parser.add_argument("--delay", type=float, default=0.0, help="ms from host to host, one way")
    parser.add_argument("--size", type=size, default=size("64MiB"), help="of the tensors")
    parser.add_argument("--rounds", type=int, default=4, help="the first one does not count")
    return parser.parse_args()


def ideal(setting: Setting) -> tuple[float, float]:
    """Return the seconds per byte that the links allow with the best split, and those of a ring."""

    def rate(host: str) -> float:
        return setting.link_of(host).rate_mbit * 1e6 / 8 / OVERHEAD

    near, far = range(setting.workers), range(setting.reducers)
    machines = [Machine(1, int(setting.colocated), rate(f"w{index}")) for index in near]
    machines += [Machine(0, 1, rate(f"r{index}")) for index in far]
    return split(machines).seconds_per_byte, ring_time(machines)


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
        )
        begun = time.monotonic()
        outcome = simulate(setting, arguments.size, arguments.rounds)
        best, ring = (each * arguments.size for each in ideal(setting))
        taken = statistics.median(outcome.times_s[1:] or outcome.times_s)
        rows.append(
            [
                f"{setting.workers}, {reducers}",
                f"{taken * 1e3:.0f}",
                f"{best * 1e3:.0f}",
                f"{ring / taken:.2f}",
                f"{ring / best:.2f}",
                f"{outcome.chunk_bytes >> 10}",
                ", ".join(outcome.overrun) or "-",
                f"{time.monotonic() - begun:.1f}",
            ]
        )
    head = ["n, k", "ms", "best, ms", "x ring", "best, x ring", "chunk, KiB", "queues too long", "took, s"]
    print("\n".join(markdown(head, rows)))


if __name__ == "__main__":
    main()
