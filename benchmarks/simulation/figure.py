"""The figure of what each number of reducers gains, as far as equal links allow it.

    python -m benchmarks.simulation.figure docs/figures/any-number.png

The curves are those of `reduction/shares.py`; nothing is measured or simulated.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure
from reduction.shares import Machine, ring_time, split

from benchmarks.plots.style import PALETTE, panels, png, styled

WORKERS = (2, 4, 8, 16, 64)


def gain(workers: int, reducers: int, *, is_colocated: bool) -> float:
    """Return how many times as fast as a perfect ring reducers are, with equal links."""
    machines = [Machine(1, int(is_colocated))] * workers + [Machine(0, 1)] * reducers
    return ring_time(machines) / split(machines).seconds_per_byte


def any_number() -> Figure:
    """Return the gain by reducers per worker, with and without reducers on the workers' hosts."""
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


def main() -> None:
    Path(sys.argv[1]).write_bytes(png(any_number()))


if __name__ == "__main__":
    main()
