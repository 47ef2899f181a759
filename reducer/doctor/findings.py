"""Findings: what they are, which one counts most, and how they name hosts and rates. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reducer.doctor.facts import Facts, Rate, Worker


class Level(enum.IntEnum):
    """How bad a finding is. The numbers are the exit codes of the command; a NOTE counts as good."""

    NOTE = 0
    SLOW = 1
    BROKEN = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to mend."""

    level: Level
    #: addresses, reach, path, bandwidth, cpu or limits.
    check: str
    #: A host, a reducer or a pair of them.
    where: str
    what: str
    #: What to do about it.
    fix: str
    #: The part of the speed that it costs, 0 to 1.
    cost: float = 0.0


def verdict(findings: Iterable[Finding]) -> Level:
    """Return the worst level."""
    return max((finding.level for finding in findings), default=Level.NOTE)


def first(findings: Iterable[Finding]) -> Finding | None:
    """Return what to mend first, None if there is nothing but notes."""
    worst = next(iter(findings), None)
    return worst if worst is not None and worst.level is not Level.NOTE else None


def name_of(worker: Worker, facts: Facts) -> str:
    """Return what a worker is called."""
    return worker.host.name if len(facts.workers) == 1 else f"rank {worker.rank} ({worker.host.name})"


def best_by(rates: Iterable[Rate], field: str) -> dict[Any, float]:
    """Return the highest rate of each rank or reducer."""
    best: dict[Any, float] = {}
    for rate in rates:
        key = getattr(rate, field)
        best[key] = max(best.get(key, 0.0), rate.bytes_per_s)
    return best


def mbit(bytes_per_s: float) -> str:
    """Return a rate in Mbit/s or Gbit/s of payload."""
    value = bytes_per_s * 8 / 1e6
    return f"{value:.3g} Mbit/s" if value < 1000 else f"{value / 1e3:.3g} Gbit/s"
