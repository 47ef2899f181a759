"""Compare the simulation with measurements of the lab in the same settings.

    python -m benchmarks.simulation.against_lab docs/measured/shaped/few-reducers.json [more files]

The arguments are files written by `make bench` or `python -m benchmarks.shaped`. Rows other than all-reduces
over shaped links are omitted. The simulation makes no claim if the lab's cores were busy most of the time,
because shaped links cost the kernel CPU that is not simulated. Such rows are marked. If a result has no time
but only its speed relative to Gloo's ring, that ring is assumed to be perfect.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.ending import ending_well
from benchmarks.lab.traffic import Link
from benchmarks.method.experiment import Line, table
from benchmarks.method.results import write
from benchmarks.method.table import size_text
from benchmarks.simulation.world import Setting, ideal, simulate

#: Fields of a contender with known time and CPU. Other contenders have doubts if cores were busy.
_TIMED = {"algbw_gb_s", "worker_cpu_s_per_gb", "reducer_cpu_s_per_gb"}
#: Maximum busy fraction of the lab's cores.
BUSY_MAX = 0.8
#: Number of all-reduces per setting, as in the lab; the first one does not count.
ROUNDS = 6
COLUMNS = {
    "n, k": "{workers}, {reducers}",
    "link": "{link}",
    "size": lambda row: size_text(row["size_bytes"]),
    "lab, ms": lambda row: f"{row['lab_s'] * 1e3:.0f}",
    "simulated, ms": lambda row: f"{row['simulated_s'] * 1e3:.0f}",
    "simulated / lab": lambda row: f"{row['simulated_s'] / row['lab_s']:.2f}",
    "not simulated": lambda row: ", ".join(row["not_simulated"]),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """An all-reduce measured by the lab."""

    setting: Setting
    size_bytes: int
    seconds: float
    #: Fraction of the lab's cores used by its processes.
    busy: float


def measured(document: dict[str, Any]) -> Iterator[Measured]:
    """Yield the measurements in a result of the lab."""
    cores = document["environment"]["cores"]
    for row in document["rows"]:
        ours = [name for name in ("tcp", "colocated") if name in row["contenders"]]
        if row["what"] != "all-reduce" or row["network"] == "loopback" or not ours:
            continue
        not_ours = ("congestion", "queue_bytes")
        link = {name: value for name, value in row["network"].items() if name not in not_ours}
        setting = Setting(
            workers=row["workers"],
            reducers=row["reducers"],
            link=Link(**link),
            colocated=ours[0] == "colocated",
            cores=cores,
        )
        figures, gb = row["contenders"][ours[0]], row["size_bytes"] / 1e9
        if figures.keys() >= _TIMED:
            seconds = gb / figures["algbw_gb_s"]
            # A worker's CPU is per its own bytes, and the CPU of all reducers is per one worker's bytes.
            cpu_s = gb * (figures["worker_cpu_s_per_gb"] * setting.workers + figures["reducer_cpu_s_per_gb"])
            busy = cpu_s / (cores * seconds)
        else:
            _, ring = ideal(setting)
            seconds, busy = (
                ring * row["size_bytes"] / figures["ratio"]["median"],
                float(bool(figures["doubts"])),
            )
        yield Measured(setting, row["size_bytes"], seconds, busy)


def compare(lab: Measured) -> dict[str, Any]:
    """Simulate a measurement of the lab, and return a row with both times."""
    ring_s = ideal(lab.setting)[1] * lab.size_bytes  # in the lab, the ring has its turn in between
    outcome = simulate(lab.setting, lab.size_bytes, ROUNDS, ring_s)
    return {
        "workers": lab.setting.workers,
        "reducers": lab.setting.reducers,
        "link": lab.setting.link.name,
        "size_bytes": lab.size_bytes,
        "lab_s": lab.seconds,
        "simulated_s": statistics.median(outcome.times_s[1:]),
        "lost": outcome.lost,
        "not_simulated": ["busy cores"] * (lab.busy > BUSY_MAX),
    }


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the settings of the command line."""
    line = Line("simulation.against_lab", __doc__, json=None)
    line.add_argument("results", type=Path, nargs="+", metavar="FILE.json")
    return line.parse_args(words)


def main() -> None:
    given = parse()
    rows = []
    with ending_well("against_lab"):
        for path in given.results:
            for lab in measured(json.loads(path.read_text(encoding="utf-8"))):
                rows.append(compare(lab))
                print(table(COLUMNS, rows[-1:])[-1], flush=True)
    if given.json is not None:
        write(given.json, {"rounds": ROUNDS}, rows)
    print("\n".join(table(COLUMNS, rows)))


if __name__ == "__main__":
    main()
