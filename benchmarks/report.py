"""One row per comparison: the table at the end of the run, and the JSON file. README.md defines the columns.

{"format": 2, "environment": {...}, "rows": [{
    "what": "all-reduce", "size_bytes": ..., "workers": n, "reducers": k, "iterations": per turn,
    "ring": "Gloo" or "NCCL", "device": "cpu" or "cuda",
    "network": "loopback" or {"rate_mbit", "latency_ms", "burst_bytes", "congestion",
                              "goodput_mbit": what iperf3 reaches, or null},
    "contenders": {"tcp" | "grpc" | "ring" | "noop": {
        "turns": [seconds of each, per iteration], "p50_s": median of all iterations on all ranks,
        "algbw_gb_s", "per_s": iterations per second, "goodput_fraction": or null,
        "worker_cpu_s_per_gb", "reducer_cpu_s_per_gb": null for those that use no reducer,
        "ratio": {"low_quartile", "median", "high_quartile"} of ring's time / own time; null for "ring",
        "wire": null on loopback, else {"worker_tx", "worker_rx", "reducer_tx", "reducer_rx": bytes of one
                process and iteration / size_bytes, "dropped_packets", "retransmitted_segments": all turns}
    }}}]}
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.paired import Measurement
from benchmarks.ranks import TRANSPORTS
from benchmarks.traffic import Link

LATEST = Path(__file__).parent / "results" / "latest.json"

#: Of the JSON; raised when a field changes its meaning.
FORMAT = 2

_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was compared, and what came out, by contender: names of TRANSPORTS, "ring", "noop"."""

    what: str
    size_bytes: int
    workers: int
    reducers: int
    device: str
    #: None on loopback.
    link: Link | None
    iterations: int
    measured: dict[str, Measurement]

    @property
    def ring(self) -> str:
        """What carries the ring."""
        return "NCCL" if self.device == "cuda" else "Gloo"

    def quartiles(self, name: str) -> tuple[float, float, float] | None:
        """Return those of the ring's time by this contender's, over all pairs of neighbouring turns."""
        ring = self.measured.get("ring")
        if name == "ring" or ring is None:
            return None
        ratios = [theirs / own for theirs, own in zip(ring.turns, self.measured[name].turns, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, median, high

    def algbw_gb_s(self, name: str) -> float:
        """Return bytes per second, in GB/s = 1e9 bytes/s."""
        return self.size_bytes / self.measured[name].turn_s / 1e9

    def algbw_mbit_s(self, name: str) -> float:
        """Return the same in the unit of networks, 1e6 bits/s."""
        return self.algbw_gb_s(name) * 8e3

    def goodput_fraction(self, name: str) -> float | None:
        """Return the algbw by what one TCP stream reaches on such a link: each byte goes each way once."""
        if self.link is None or self.link.goodput_mbit is None:
            return None
        return self.algbw_mbit_s(name) / self.link.goodput_mbit

    def worker_cpu_s_per_gb(self, name: str) -> float:
        """Return a rank's CPU seconds (mean of the ranks) per GB of its tensors."""
        return self.measured[name].worker_cpu_s / self.workers / self._bytes(name) * 1e9

    def reducer_cpu_s_per_gb(self, name: str) -> float | None:
        """Return the CPU seconds of all reducers together per GB of one rank's tensors."""
        return self.measured[name].reducer_cpu_s / self._bytes(name) * 1e9 if name in TRANSPORTS else None

    def wire(self, name: str) -> dict[str, float] | None:
        """Return what went over the links: bytes of one process by those of its tensors, and losses."""
        if self.link is None:
            return None
        traffic = self.measured[name].traffic
        per_worker, per_reducer = self.workers * self._bytes(name), self.reducers * self._bytes(name)
        return {
            "worker_tx": traffic.worker_tx_bytes / per_worker,
            "worker_rx": traffic.worker_rx_bytes / per_worker,
            "reducer_tx": traffic.reducer_tx_bytes / per_reducer,
            "reducer_rx": traffic.reducer_rx_bytes / per_reducer,
            "dropped_packets": traffic.dropped_packets,
            "retransmitted_segments": traffic.retransmitted_segments,
        }

    def json(self) -> dict[str, Any]:
        """Return it as in the file."""
        return {
            "what": self.what,
            "size_bytes": self.size_bytes,
            "workers": self.workers,
            "reducers": self.reducers,
            "iterations": self.iterations,
            "ring": self.ring,
            "device": self.device,
            "network": "loopback" if self.link is None else asdict(self.link),
            "contenders": {name: self._contender(name) for name in self.measured},
        }

    def _contender(self, name: str) -> dict[str, Any]:
        measurement, quartiles = self.measured[name], self.quartiles(name)
        names = ("low_quartile", "median", "high_quartile")
        return {
            "turns": measurement.turns,
            "p50_s": measurement.p50_s,
            "algbw_gb_s": self.algbw_gb_s(name),
            "per_s": 1 / measurement.turn_s,
            "goodput_fraction": self.goodput_fraction(name),
            "worker_cpu_s_per_gb": self.worker_cpu_s_per_gb(name),
            "reducer_cpu_s_per_gb": self.reducer_cpu_s_per_gb(name),
            "ratio": None if quartiles is None else dict(zip(names, quartiles, strict=True)),
            "wire": self.wire(name),
        }

    def _bytes(self, name: str) -> int:
        return self.size_bytes * self.iterations * len(self.measured[name].turns)


@dataclass(slots=True)
class Report:
    """The rows of a run."""

    environment: dict[str, Any] = field(default_factory=environment.describe)
    rows: list[Row] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table as text, in Markdown."""
        return _table([_HEAD, *(_cells(row, name) for row in self.rows for name in row.measured)])

    def write(self, path: Path = LATEST) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(exist_ok=True)
        rows = [row.json() for row in self.rows]
        document = {"format": FORMAT, "environment": self.environment, "rows": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")


_HEAD = [
    "what",
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
        _size(row.size_bytes),
        str(row.workers),
        str(row.reducers),
        "loopback" if row.link is None else row.link.name,
        row.ring if name == "ring" else name,
        f"{row.algbw_gb_s(name):#.3g}",
        f"{row.algbw_mbit_s(name):.0f}",
        "" if quartiles is None else "{1:.2f} ({0:.2f}-{2:.2f})".format(*quartiles),
        "" if fraction is None else f"{fraction:.1%}",
        f"{row.measured[name].p50_s * 1e3:.2f}",
        f"{1 / row.measured[name].turn_s:#.3g}",
        "" if wire is None else f"{wire['worker_tx']:.2f}",
        "" if wire is None else f"{wire['worker_rx']:.2f}",
        "" if wire is None else f"{wire['dropped_packets']}",
        "" if wire is None else f"{wire['retransmitted_segments']}",
        f"{row.worker_cpu_s_per_gb(name):.2f}",
        "" if reducer_cpu is None else f"{reducer_cpu:.2f}",
    ]


def _size(count: int) -> str:
    for unit, name in ((_MIB, "MiB"), (_KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *lines[1:]]
