"""One row per measurement: the table at the end of the run, and the JSON file. README.md defines the columns."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.paired import Measurement

LATEST = Path(__file__).parent / "results" / "latest.json"

#: Of the JSON; raised when a field changes its meaning.
FORMAT = 1

_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was compared, and what came out; `measured` has the keys "ours" and "ring", maybe "noop"."""

    what: str
    size_bytes: int
    workers: int
    reducers: int
    ring: str
    transport: str
    iterations: int
    measured: dict[str, Measurement]

    def ratios(self) -> list[float]:
        """Return the ring's time by ours for each pair of neighbouring turns; above 1 we are faster."""
        pairs = zip(self.measured["ring"].turns, self.measured["ours"].turns, strict=True)
        return [ring / ours for ring, ours in pairs]

    def algbw_gb_s(self, name: str) -> float:
        """Return bytes per second, in GB/s = 1e9 bytes/s."""
        return self.size_bytes / self.measured[name].turn_s / 1e9

    def worker_cpu_s_per_gb(self, name: str) -> float:
        """Return a rank's CPU seconds (mean of the ranks) per GB of its tensors."""
        return self.measured[name].worker_cpu_s / self.workers / self._gb(name)

    def reducer_cpu_s_per_gb(self) -> float:
        """Return the CPU seconds of all reducers together per GB of one rank's tensors."""
        return self.measured["ours"].reducer_cpu_s / self._gb("ours")

    def _gb(self, name: str) -> float:
        return self.size_bytes * self.iterations * len(self.measured[name].turns) / 1e9


@dataclass(slots=True)
class Report:
    """The rows of a run."""

    environment: dict[str, Any] = field(default_factory=environment.describe)
    rows: list[Row] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table as text, in Markdown."""
        return _table([_HEAD, *(_cells(row) for row in self.rows)])

    def write(self, path: Path = LATEST) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(exist_ok=True)
        rows = [_json(row) for row in self.rows]
        document = {"format": FORMAT, "environment": self.environment, "rows": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")


_HEAD = [
    "what",
    "size",
    "n",
    "k",
    "ring",
    "ours GB/s",
    "ring GB/s",
    "ours/ring (quartiles)",
    "ours ms",
    "ring ms",
    "no comm. ms",
    "worker CPU s/GB ours",
    "ring",
    "reducers CPU s/GB",
]


def _cells(row: Row) -> list[str]:
    low, median, high = statistics.quantiles(row.ratios(), n=4, method="inclusive")
    noop = row.measured.get("noop")
    return [
        row.what,
        _size(row.size_bytes),
        str(row.workers),
        str(row.reducers),
        row.ring,
        f"{row.algbw_gb_s('ours'):#.3g}",
        f"{row.algbw_gb_s('ring'):#.3g}",
        f"{median:.2f} ({low:.2f}-{high:.2f})",
        f"{row.measured['ours'].p50_s * 1e3:.2f}",
        f"{row.measured['ring'].p50_s * 1e3:.2f}",
        "" if noop is None else f"{noop.p50_s * 1e3:.2f}",
        f"{row.worker_cpu_s_per_gb('ours'):.2f}",
        f"{row.worker_cpu_s_per_gb('ring'):.2f}",
        f"{row.reducer_cpu_s_per_gb():.2f}",
    ]


def _json(row: Row) -> dict[str, Any]:
    low, median, high = statistics.quantiles(row.ratios(), n=4, method="inclusive")
    derived = {
        name: {
            "algbw_gb_s": row.algbw_gb_s(name),
            "p50_s": measurement.p50_s,
            "worker_cpu_s_per_gb": row.worker_cpu_s_per_gb(name),
        }
        for name, measurement in row.measured.items()
    }
    derived["ours"]["reducer_cpu_s_per_gb"] = row.reducer_cpu_s_per_gb()
    document = asdict(row)
    for name, measurement in document["measured"].items():
        del measurement["iterations"]  # thousands; their median stays
        measurement.update(derived[name])
    return document | {"ratio": {"low_quartile": low, "median": median, "high_quartile": high}}


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
