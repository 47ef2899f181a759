"""Findings: what they are, which one counts most, and how they name hosts and rates. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reducer.doctor.facts import Facts, Host, Rate, Worker

#: The part of the scheduler's periods that a quota may take.
THROTTLED_PART = 0.05
#: The part of all cores that other programs may use.
BUSY_PART = 0.75


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
    #: A host, a reducer or a pair of them; empty if it is about none of them.
    where: str
    #: A clause that can stand after the place and a colon.
    what: str
    #: What to do about it.
    fix: str
    #: The part of the speed that it costs, 0 to 1.
    cost: float = 0.0
    #: For a lack of cores, the ranks that lack them; for other findings, those whose lack of cores may be the cause.
    ranks: tuple[int, ...] = ()
    #: The sentences of what this finding may be the cause of.
    explains: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Where, and what was seen."""
        return f"{self.where}: {self.what}" if self.where else self.what


def verdict(findings: Iterable[Finding]) -> Level:
    """Return the worst level."""
    return max((finding.level for finding in findings), default=Level.NOTE)


def first(findings: Iterable[Finding]) -> Finding | None:
    """Return what to mend first: of the worst ones that which costs most. None if there is nothing but notes."""
    worst = max(findings, key=lambda finding: (finding.level, finding.cost), default=None)
    return worst if worst is not None and worst.level is not Level.NOTE else None


def is_throttled(host: Host) -> bool:
    """Whether a quota takes cores from the host's processes."""
    return host.throttled > THROTTLED_PART or host.cores < 1


def is_busy(host: Host) -> bool:
    """Whether other programs take cores from the host's processes."""
    return host.busy_cores > BUSY_PART * host.affinity


def short_of_cores(facts: Facts) -> set[int]:
    """Return the ranks whose hosts lack cores."""
    return {worker.rank for worker in facts.workers if is_throttled(worker.host) or is_busy(worker.host)}


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


def sums_by_reducer(rates: Iterable[Rate]) -> dict[str, float]:
    """Return what each reducer takes in from all ranks together."""
    sums: dict[str, float] = {}
    for rate in rates:
        sums[rate.reducer] = sums.get(rate.reducer, 0.0) + rate.bytes_per_s
    return sums


def mbit(bytes_per_s: float) -> str:
    """Return a rate in Mbit/s or Gbit/s of payload."""
    value = bytes_per_s * 8 / 1e6
    return f"{value:.3g} Mbit/s" if value < 1000 else f"{value / 1e3:.3g} Gbit/s"
