"""Findings: their types and order, and names of hosts and rates. Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reducer.doctor.facts import Facts, Host, Rate, Worker

#: Fraction of the scheduler's periods that a quota may take.
THROTTLED_PART = 0.05
#: Fraction of all cores that other programs may use.
BUSY_PART = 0.75


class Level(enum.IntEnum):
    """Severity of a finding. The numbers are the exit codes of the command; a NOTE counts as good."""

    NOTE = 0
    SLOW = 1
    BROKEN = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to fix."""

    level: Level
    #: One of addresses, reach, path, bandwidth, cpu or limits.
    check: str
    #: A host, a reducer or a pair of them; empty if it concerns none of them.
    where: str
    #: A clause that can follow the place and a colon.
    what: str
    #: The advised action.
    fix: str
    #: Fraction of the speed that it costs, 0 to 1.
    cost: float = 0.0
    #: For a lack of cores, the ranks that lack them; for other findings, ranks whose lack of cores may be the cause.
    ranks: tuple[int, ...] = ()
    #: The sentences of findings that this one may have caused.
    explains: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The place and the observation."""
        return f"{self.where}: {self.what}" if self.where else self.what


def verdict(findings: Iterable[Finding]) -> Level:
    """Return the worst level."""
    return max((finding.level for finding in findings), default=Level.NOTE)


def first(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding to fix first, the most expensive of the worst level; None if there are only notes."""
    worst = max(findings, key=lambda finding: (finding.level, finding.cost), default=None)
    return worst if worst is not None and worst.level is not Level.NOTE else None


def is_throttled(host: Host) -> bool:
    """Return whether a quota takes cores from the host's processes."""
    return host.throttled > THROTTLED_PART or host.cores < 1


def is_busy(host: Host) -> bool:
    """Return whether other programs take cores from the host's processes."""
    return host.busy_cores > BUSY_PART * host.affinity


def short_of_cores(facts: Facts) -> set[int]:
    """Return the ranks whose hosts lack cores."""
    return {worker.rank for worker in facts.workers if is_throttled(worker.host) or is_busy(worker.host)}


def name_of(worker: Worker, facts: Facts) -> str:
    """Return the name of a worker."""
    return worker.host.name if len(facts.workers) == 1 else f"rank {worker.rank} ({worker.host.name})"


def best_by(rates: Iterable[Rate], field: str) -> dict[Any, float]:
    """Return the highest rate of each rank or reducer."""
    best: dict[Any, float] = {}
    for rate in rates:
        key = getattr(rate, field)
        best[key] = max(best.get(key, 0.0), rate.bytes_per_s)
    return best


def sums_by_reducer(rates: Iterable[Rate]) -> dict[str, float]:
    """Return the rate at which each reducer receives from all ranks together."""
    sums: dict[str, float] = {}
    for rate in rates:
        sums[rate.reducer] = sums.get(rate.reducer, 0.0) + rate.bytes_per_s
    return sums


def mbit(bytes_per_s: float) -> str:
    """Return a rate in Mbit/s or Gbit/s of payload."""
    value = bytes_per_s * 8 / 1e6
    return f"{value:.3g} Mbit/s" if value < 1000 else f"{value / 1e3:.3g} Gbit/s"
