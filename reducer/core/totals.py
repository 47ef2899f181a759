"""Counters of a reducer process for each training job since the process started. They outlive the jobs.

The metrics are read from here. A job that restarts under its name keeps its counters, because
Prometheus takes a falling counter as a process restart.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from reduction.limits import HOST_TOTALS_MAX, JOB_TOTALS_MAX, RANK_TOTALS_MAX

from reducer.core.histogram import Histogram

#: Label of all ranks or hosts without their own label.
OTHER = "other"
#: Rank 0's name for a job without a user-given name. All of these count as one, since names that are
#: never reused would add Prometheus series forever.
_UNNAMED = re.compile(r"run-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class JobLabel(NamedTuple):
    """The label of a set of counters."""

    #: The job's name. "" stands for all jobs without one.
    job: str
    #: The ranks of the process group, "" for the whole job.
    group: str


def job_label(job: str, group: str) -> JobLabel:
    """Return the label of a job of this name."""
    return JobLabel(_UNNAMED.sub("", job), group)


@dataclass(slots=True)
class Traffic:
    """Payload bytes of pushes and results over one data plane."""

    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class JobTotals:
    """The counters of one label."""

    #: Number of live jobs.
    live_jobs: int = 0
    #: Collectives whose results every rank holds.
    collectives: int = 0
    epochs: int = 0
    #: Times from a chunk's first push to its last.
    chunk_waits: Histogram = field(default_factory=Histogram)
    #: Times from a chunk's last push until its result was passed to the last connection, for a sample of chunks.
    chunk_reduces: Histogram = field(default_factory=Histogram)
    #: Wall-clock seconds in which at least one chunk waited only for this rank.
    straggler_s: dict[int, float] = field(default_factory=dict)
    #: Traffic by data plane.
    traffic: dict[str, Traffic] = field(default_factory=dict)
    #: Packets retransmitted by connections that have ended, by the worker's host.
    retransmits: Counter[str] = field(default_factory=Counter)
    _shown_other_s: float = 0.0

    def copy(self) -> JobTotals:
        """Return a copy of the current values for another thread."""
        return replace(
            self,
            chunk_waits=self.chunk_waits.copy(),
            chunk_reduces=self.chunk_reduces.copy(),
            straggler_s=dict(self.straggler_s),
            traffic={plane: replace(traffic) for plane, traffic in self.traffic.items()},
            retransmits=Counter(self.retransmits),
        )

    def on_plane(self, plane: str) -> Traffic:
        """Return the counters of one data plane."""
        return self.traffic.setdefault(plane, Traffic())

    def add_retransmits(self, host: str, count: int) -> None:
        """Count packets retransmitted to a host. Hosts beyond HOST_TOTALS_MAX count as OTHER."""
        is_known = host in self.retransmits or len(self.retransmits) < HOST_TOTALS_MAX
        self.retransmits[host if is_known else OTHER] += count

    def worst(self) -> list[tuple[str, float]]:
        """Return the straggler seconds of the worst ranks, and of all others together.

        The set of worst ranks may change. The others' seconds never fall, because a counter must not.
        """
        ranks = sorted(self.straggler_s, key=self.straggler_s.__getitem__, reverse=True)
        shown = [(str(rank), self.straggler_s[rank]) for rank in ranks[:RANK_TOTALS_MAX]]
        if len(ranks) <= RANK_TOTALS_MAX:
            return shown
        others_s = sum(self.straggler_s[rank] for rank in ranks[RANK_TOTALS_MAX:])
        self._shown_other_s = max(self._shown_other_s, others_s)
        return [*shown, (OTHER, self._shown_other_s)]


class Totals:
    """The counters of all labels, and those of the process."""

    def __init__(self) -> None:
        self.by_label: dict[JobLabel, JobTotals] = {}
        #: Ended jobs by outcome.
        self.jobs: Counter[str] = Counter(ended=0, failed=0, lost=0)
        #: Joins by result.
        self.joins: Counter[str] = Counter(admitted=0, refused=0)

    def begin(self, label: JobLabel) -> JobTotals:
        """Return the counters of a job that begins.

        Beyond JOB_TOTALS_MAX labels, the oldest labels are forgotten as soon as they have no live job.
        """
        totals = self.by_label.get(label)
        if totals is None:
            self._forget(JOB_TOTALS_MAX - 1)
            totals = self.by_label[label] = JobTotals()
        totals.live_jobs += 1
        return totals

    def end(self, totals: JobTotals, outcome: str) -> None:
        """Record that a job is over: "ended", "failed" or "lost"."""
        totals.live_jobs -= 1
        self.jobs[outcome] += 1
        self._forget(JOB_TOTALS_MAX)

    def _forget(self, limit: int) -> None:
        """Forget labels without a live job until at most `limit` are left, or only labels with one."""
        excess = max(0, len(self.by_label) - limit)
        for old in [old for old, each in self.by_label.items() if not each.live_jobs][:excess]:
            del self.by_label[old]
