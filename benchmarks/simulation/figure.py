"""Figures of the gain by number of reducers, and of a sum's time by number of workers.

    python -m benchmarks.simulation.figure docs/figures    # any-number.png and growth.png; a minute

The curves are from `reduction/shares.py` with equal links. The dots of the second figure are simulated,
with the real cores of ranks and reducers.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from matplotlib.figure import Figure
from reduction.shares import Machine, ring_time, split

from benchmarks.lab.traffic import Link
from benchmarks.plots.style import PALETTE, panels, png, styled
from benchmarks.simulation.world import Setting, simulate
from reducer.planner.formulas import OVERHEAD

WORKERS = (2, 4, 8, 16, 64)
#: Parameters of `growth`.
GROWTH_BYTES, GROWTH_MBIT, GROWTH_SIMULATED_MAX = 64 << 20, 2500, 32
#: Maximum milliseconds that a packet waits on these links.
GROWTH_QUEUE_MS = 20.0


def gain(workers: int, reducers: int, *, is_colocated: bool) -> float:
    """Return the speed of reducers relative to a perfect ring, with equal links."""
    machines = [Machine(1, int(is_colocated))] * workers + [Machine(0, 1)] * reducers
    return ring_time(machines) / split(machines).seconds_per_byte


def any_number() -> Figure:
    """Return the figure of the gain by reducers per worker, with and without reducers on the workers' hosts."""
    with styled():
        figure, (axes,) = panels(1, width=6.4, height=3.8)
        for workers, colour in zip(WORKERS, PALETTE, strict=False):
            for is_colocated in (True, False):
                counts = range(0 if is_colocated else 1, workers + max(workers // 4, 1) + 1)
                axes.plot(
                    [count / workers for count in counts],
                    [gain(workers, count, is_colocated=is_colocated) for count in counts],
                    color=colour,
                    linestyle="-" if is_colocated else ":",
                    label=f"{workers} workers" if is_colocated else None,
                )
        axes.axhline(1, color="#333333", linewidth=1, linestyle="--")
        axes.set_ylim(0.4, 2.05)
        axes.set_xlim(0, 1.25)
        axes.set_xlabel("reducers on hosts of their own, per worker")
        axes.set_ylabel("times as fast as a perfect ring")
        axes.set_title("full: the workers' hosts have reducers too; dotted: they have none")
        axes.legend(loc="upper left", ncols=2)
    return figure


def growth() -> Figure:
    """Return the figure of an all-reduce's time by the number of workers, from the formula and simulated."""
    mib = GROWTH_BYTES >> 20
    with styled():
        figure, (axes,) = panels(1, width=6.4, height=3.8)
        counts = [2**power for power in range(1, 11)]
        at_best = GROWTH_BYTES * 8 * OVERHEAD / (GROWTH_MBIT * 1e6) * 1e3
        cases = [("none", 0, True), ("one per four workers", 0.25, True), ("one per worker", 1, False)]
        for (label, part, is_colocated), colour in zip(cases, PALETTE, strict=False):
            reducers = [int(part * count) for count in counts]
            pairs = list(zip(counts, reducers, strict=True))
            rings = [2 * (count - 1) / count for count in counts]
            gains = [gain(count, k, is_colocated=is_colocated) for count, k in pairs]
            curve = [at_best * ring / each for ring, each in zip(rings, gains, strict=True)]
            axes.plot(counts, curve, color=colour, label=f"reducers: {label}")
            dots = [(n, _simulated(n, k, is_colocated)) for n, k in pairs if n <= GROWTH_SIMULATED_MAX]
            axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_ylim(0)
        axes.set_xlabel("workers")
        axes.set_ylabel(f"ms for {mib} MiB at {GROWTH_MBIT} Mbit/s")
        axes.set_title("lines: the formula (without reducers: a perfect ring); dots: simulated")
        axes.legend(loc="lower right")
    return figure


def _simulated(workers: int, reducers: int, is_colocated: bool) -> float:
    """Return the median milliseconds of an all-reduce."""
    link = Link(rate_mbit=GROWTH_MBIT, latency_ms=GROWTH_QUEUE_MS)
    setting = Setting(workers=workers, reducers=reducers, link=link, colocated=is_colocated)
    return statistics.median(simulate(setting, GROWTH_BYTES, 4).times_s[1:]) * 1e3


def main() -> None:
    folder = Path(sys.argv[1])
    for name, figure in (("any-number", any_number()), ("growth", growth())):
        (folder / f"{name}.png").write_bytes(png(figure))


if __name__ == "__main__":
    main()
