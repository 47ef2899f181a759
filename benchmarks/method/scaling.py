"""How the time of one collective grows with the workers, on the same links, with as many reducers.

The time of a ring grows as 2(n-1)/n. The time over reducers should not grow. Unlike in all other
ratios, the two times come from different processes at different moments: on a busy machine look at
both rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.lab.traffic import Link
from benchmarks.method.row import Row
from benchmarks.method.table import size_text

#: The number of workers that larger numbers are compared with.
BASE_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The growth from BASE_WORKERS to more workers."""

    size_bytes: int
    workers: int
    link: Link
    #: Time / time with BASE_WORKERS, by contender.
    growth: dict[str, float]

    def line(self) -> str:
        """Return the growth as a sentence."""
        growth = ", ".join(f"{name} {factor:.2f}" for name, factor in self.growth.items())
        case = f"{size_text(self.size_bytes)}, {self.link.name}"
        return f"time(n={self.workers}) / time(n={BASE_WORKERS}) with k=n, {case}: {growth}"

    def json(self) -> dict[str, Any]:
        """Return the growth as in the file."""
        return {
            "size_bytes": self.size_bytes,
            "workers": self.workers,
            "base_workers": BASE_WORKERS,
            "network": asdict(self.link),
            "contenders": self.growth,
        }


def scaling(rows: Sequence[Row]) -> list[Step]:
    """Return the growth between rows of all-reduce on the same shaped links."""
    square = [row for row in rows if row.what == "all-reduce" and row.link and row.workers == row.reducers]
    bases = {_case(row): row for row in square if row.workers == BASE_WORKERS}
    steps = []
    for row in sorted(square, key=lambda row: row.workers):
        base = bases.get(_case(row))
        if base is None or row.workers == BASE_WORKERS:
            continue
        both = [name for name in row.measured if name in base.measured]
        growth = {name: row.measured[name].turn_s / base.measured[name].turn_s for name in both}
        assert row.link is not None
        steps.append(Step(size_bytes=row.size_bytes, workers=row.workers, link=row.link, growth=growth))
    return steps


def _case(row: Row) -> tuple[object, ...]:
    assert row.link is not None
    return row.device, row.size_bytes, row.link.rate_mbit, row.link.latency_ms, row.link.burst_bytes
