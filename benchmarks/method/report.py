"""The report of a run: the table that is printed and the JSON file. README.md defines the columns.

{"format": 2, "environment": {...}, "rows": [{
    "what": "all-reduce", "size_bytes": ..., "workers": n, "reducers": k, "processes": of each reducer,
    "iterations": per turn,
    "ring": "Gloo" or "NCCL", "device": "cpu" or "cuda",
    "network": "loopback" or {"rate_mbit", "latency_ms", "queue_bytes": what a queue holds, "burst_bytes", "congestion",
                              "goodput_mbit": what iperf3 reaches, or null},
    "nccl": null or the contents of NCCL's log, see nccl_log.py,
    "contenders": {"tcp" | "grpc" | "ring" | "noop": {
        "turns": [seconds of each, per iteration], "p50_s": median of all iterations on all ranks,
        "algbw_gb_s", "per_s": iterations per second, "goodput_fraction": or null,
        "worker_cpu_s_per_gb", "reducer_cpu_s_per_gb": null for those that use no reducer,
        "ratio": {"low_quartile", "median", "high_quartile"} of ring's time / own time; null for "ring",
        "wire": null on loopback, else {"worker_tx", "worker_rx", "reducer_tx", "reducer_rx": bytes of one
                process and iteration / size_bytes, "dropped_packets", "retransmitted_segments": all turns},
        "unshaped_s": median turn on links that are not shaped, or null,
        "doubts": [reasons why this time says nothing about the network]
    }}}]}
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lab import environment
from benchmarks.method.results import RESULTS
from benchmarks.method.row import Row
from benchmarks.method.scaling import scaling
from benchmarks.method.table import markdown, size_text, without_empty_columns

LATEST = RESULTS / "latest.json"

#: Version of the JSON; raised when a field changes its meaning.
FORMAT = 2


@dataclass(slots=True)
class Report:
    """The rows of a run."""

    environment: dict[str, Any] = field(default_factory=environment.describe)
    rows: list[Row] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table in Markdown, and how time grows with the number of workers."""
        cells = [_cells(row, name) for row in self.rows for name in row.measured]
        table = markdown(*without_empty_columns(_HEAD, cells))
        notes = [step.line() for step in scaling(self.rows)]
        notes += dict.fromkeys(line for row in self.rows for line in nccl_notes(row))
        if any(row.link is not None and row.link.goodput_mbit is None for row in self.rows):
            notes.append(f"of iperf3: {'not measured' if shutil.which('iperf3') else 'iperf3 missing'}")
        return [*table, "", *notes] if notes else table

    def show(self, path: Path | None, table: Callable[[list[Row]], list[str]] | None = None) -> None:
        """Print the table of the rows that are there, or another one of them, and write them if there is a path."""
        if not self.rows:
            return
        if path is not None:
            self.write(path)
        print("\n".join(self.lines() if table is None else table(self.rows)))

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(exist_ok=True)
        rows = [row.json() for row in self.rows]
        growth = [step.json() for step in scaling(self.rows)]
        document = {"format": FORMAT, "environment": self.environment, "rows": rows, "scaling": growth}
        path.write_text(json.dumps(document, indent=1) + "\n")


def nccl_notes(row: Row) -> list[str]:
    """Return the notes of a row on GPUs: which NCCL was used, and which times say nothing about the network."""
    if row.nccl is None:
        return []
    case = f"{row.what}, n={row.workers}, {'loopback' if row.link is None else row.link.name}"
    notes = [f"{case}: {row.nccl.summary()}"]
    for name in row.measured:
        label = row.ring if name == "ring" else name
        if (unshaped_s := row.unshaped_s.get(name)) is not None:
            both = f"{1e3 * row.measured[name].turn_s:.0f} ms, {1e3 * unshaped_s:.0f} ms unshaped"
            notes.append(f"{case}, {label}: {both}, {row.times_as_fast_unshaped(name):.2f} times as fast")
        notes += [f"(*) {case}, {label}: no figure of the network: {doubt}" for doubt in row.doubts(name)]
    return notes


_HEAD = [
    "load",
    "size",
    "n",
    "k",
    "link",
    "contender",
    "GB/s",
    "Mbit/s",
    "x ring (quartiles)",
    "of iperf3",
    "ms",
    "p99 ms",
    "1/s",
    "tx",
    "rx",
    "drops",
    "retr.",
    "worker CPU s/GB",
    "reducers CPU s/GB",
]


def _cells(row: Row, name: str) -> list[str]:
    quartiles, wire, fraction = row.quartiles(name), row.wire(name), row.goodput_fraction(name)
    reducer_cpu = row.reducer_cpu_s_per_gb(name)
    return [
        row.what,
        size_text(row.size_bytes),
        str(row.workers),
        str(row.reducers),
        "loopback" if row.link is None else row.link.name,
        (row.ring if name == "ring" else name) + (" (*)" if row.doubts(name) else ""),
        f"{row.algbw_gb_s(name):#.3g}",
        f"{row.algbw_mbit_s(name):.0f}",
        "" if quartiles is None else "{1:.2f} ({0:.2f}-{2:.2f})".format(*quartiles),
        "" if fraction is None else f"{fraction:.1%}",
        f"{row.measured[name].p50_s * 1e3:.2f}",
        "" if row.measured[name].p99_s is None else f"{row.measured[name].p99_s * 1e3:.0f}",
        f"{1 / row.measured[name].turn_s:#.3g}",
        "" if wire is None else f"{wire['worker_tx']:.2f}",
        "" if wire is None else f"{wire['worker_rx']:.2f}",
        "" if wire is None else f"{wire['dropped_packets']}",
        "" if wire is None else f"{wire['retransmitted_segments']}",
        f"{row.worker_cpu_s_per_gb(name):.2f}",
        "" if reducer_cpu is None else f"{reducer_cpu:.2f}",
    ]
