"""The report of a run: the printed table and the JSON file. README.md defines the columns.

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

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lab import environment
from benchmarks.method import results
from benchmarks.method.row import Row
from benchmarks.method.table import markdown, size_text, spread, without_empty_columns

LATEST = results.RESULTS / "latest.json"

#: Version of the JSON, incremented when a field changes its meaning.
FORMAT = 2


@dataclass(slots=True)
class Report:
    """The rows of a run."""

    environment: dict[str, Any] = field(default_factory=environment.describe)
    rows: list[Row] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table in Markdown, and the growth of time with the number of workers."""
        ran = [(row, name, row.figures(name)) for row in self.rows for name in row.measured]
        cells = [[cell(*one) for cell in _COLUMNS.values()] for one in ran]
        table = markdown(*without_empty_columns(list(_COLUMNS), cells))
        notes = growth(self.rows)
        notes += dict.fromkeys(line for row in self.rows for line in gpu_notes(row))
        if any((link := row.shape.link) is not None and link.goodput_mbit is None for row in self.rows):
            notes.append(f"of iperf3: {'not measured' if shutil.which('iperf3') else 'iperf3 missing'}")
        return [*table, "", *notes] if notes else table

    def show(self, path: Path | None, table: Callable[[list[Row]], list[str]] | None = None) -> None:
        """Print the table of the rows so far, or the given one, and write the rows if there is a path."""
        if not self.rows:
            return
        if path is not None:
            self.write(path)
        print("\n".join(self.lines() if table is None else table(self.rows)))

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        results.write(path, {}, [row.json() for row in self.rows], self.environment, format=FORMAT)


def growth(rows: Sequence[Row]) -> list[str]:
    """Return how the time of an all-reduce grows from 2 workers to more on the same links, with as many reducers.

    A ring's time grows as 2(n-1)/n, and the reducers' time should not grow. Unlike in all other ratios, the two times
    come from different processes at different moments, so look at both rows on a busy machine.
    """

    pairs: dict[tuple[object, ...], Row] = {}
    lines = []
    for row in sorted(rows, key=lambda row: row.shape.workers):
        shape, link = row.shape, row.shape.link
        if row.what != "all-reduce" or link is None or shape.workers != shape.reducers:
            continue
        case = shape.device, row.size_bytes, link.rate_mbit, link.latency_ms, link.burst_bytes
        if shape.workers == 2:
            pairs[case] = row
        elif (pair := pairs.get(case)) and (both := [name for name in row.measured if name in pair.measured]):
            factors = [
                f"{name} {row.measured[name].turn_s / pair.measured[name].turn_s:.2f}" for name in both
            ]
            where = f"{size_text(row.size_bytes)}, {row.place}"
            lines.append(f"time(n={shape.workers}) / time(n=2) with k=n, {where}: {', '.join(factors)}")
    return lines


def gpu_notes(row: Row) -> list[str]:
    """Return the notes of a row on GPUs: the NCCL in use, and times that say nothing about the network."""
    case = f"{row.what}, n={row.shape.workers}, {row.place}"
    notes = [] if row.nccl is None else [f"{case}: {row.nccl.summary()}"]
    for name, unshaped_s in row.unshaped_s.items():
        both = f"{1e3 * row.measured[name].turn_s:.0f} ms, {1e3 * unshaped_s:.0f} ms unshaped"
        factor = f"{row.times_as_fast_unshaped(name):.2f} times as fast"
        notes.append(f"{case}, {row.label(name)}: {both}, {factor}")
    for name in row.measured:
        doubts = row.doubts(name)
        notes += [f"(*) {case}, {row.label(name)}: no figure of the network: {doubt}" for doubt in doubts]
    return notes


#: Columns of the table, as functions of a row, the contender's name, and its figures.
_COLUMNS: dict[str, Callable[[Row, str, dict[str, Any]], str]] = {
    "load": lambda row, _, figures: row.what,
    "size": lambda row, _, figures: size_text(row.size_bytes),
    "n": lambda row, _, figures: f"{row.shape.workers}",
    "k": lambda row, _, figures: f"{row.shape.reducers}",
    "link": lambda row, _, figures: row.place,
    "contender": lambda row, name, figures: row.label(name) + (" (*)" if figures["doubts"] else ""),
    "GB/s": lambda row, _, figures: f"{figures['algbw_gb_s']:#.3g}",
    "Mbit/s": lambda row, _, figures: f"{8e3 * figures['algbw_gb_s']:.0f}",
    "x ring (quartiles)": lambda row, name, _: spread(row.quartiles(name)),
    "of iperf3": lambda row, _, figures: _or_empty(figures["goodput_fraction"], ".1%"),
    "ms": lambda row, _, figures: f"{figures['p50_s'] * 1e3:.2f}",
    "p99 ms": lambda row, name, _: _or_empty(row.measured[name].p99_s, ".0f", 1e3),
    "1/s": lambda row, _, figures: f"{figures['per_s']:#.3g}",
    "tx": lambda row, _, figures: _of_wire(figures, "worker_tx", ".2f"),
    "rx": lambda row, _, figures: _of_wire(figures, "worker_rx", ".2f"),
    "drops": lambda row, _, figures: _of_wire(figures, "dropped_packets"),
    "retr.": lambda row, _, figures: _of_wire(figures, "retransmitted_segments"),
    "worker CPU s/GB": lambda row, _, figures: f"{figures['worker_cpu_s_per_gb']:.2f}",
    "reducers CPU s/GB": lambda row, _, figures: _or_empty(figures["reducer_cpu_s_per_gb"], ".2f"),
}


def _or_empty(value: float | None, digits: str, factor: float = 1.0) -> str:
    return "" if value is None else f"{value * factor:{digits}}"


def _of_wire(figures: dict[str, Any], quantity: str, digits: str = "") -> str:
    return "" if figures["wire"] is None else f"{figures['wire'][quantity]:{digits}}"
