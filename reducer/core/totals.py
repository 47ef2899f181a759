"""What a reducer process has done for each training job since it started: counters that outlive the jobs.

The metrics are read from here. A job that begins again under its name goes on with its counters,
because Prometheus takes a counter that falls for a process that has started again.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from reduction.limits import HOST_TOTALS_MAX, JOB_TOTALS_MAX, RANK_TOTALS_MAX

from reducer.core.histogram import Histogram

#: Stands for all ranks or hosts that have no label of their own.
OTHER = "other"
#: What rank 0 calls a job that the user gave no name. All of these count as one, since a name that
#: is never used again would add series to Prometheus for ever.
_UNNAMED = re.compile(r"run-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class JobLabel(NamedTuple):
    """What counters are kept for."""

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

    #: Jobs that are there.
    live_jobs: int = 0
    #: Collectives whose results every rank holds.
    collectives: int = 0
    epochs: int = 0
    #: From a chunk's first push to its last.
    chunk_waits: Histogram = field(default_factory=Histogram)
    #: From a chunk's last push until its result was handed to the last connection. Of some chunks.
    chunk_reduces: Histogram = field(default_factory=Histogram)
    #: Wall-clock seconds in which at least one chunk waited for this rank and for no other.
    straggler_s: dict[int, float] = field(default_factory=dict)
    #: By data plane.
    traffic: dict[str, Traffic] = field(default_factory=dict)
    #: Packets that connections which have ended sent again, by the worker's host.
    retransmits: Counter[str] = field(default_factory=Counter)
    _shown_other_s: float = 0.0

    def copy(self) -> JobTotals:
        """Return the present values, for another thread."""
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
        """Count packets that were sent again to a host. Hosts beyond HOST_TOTALS_MAX count as OTHER."""
        is_known = host in self.retransmits or len(self.retransmits) < HOST_TOTALS_MAX
        self.retransmits[host if is_known else OTHER] += count

    def worst(self) -> list[tuple[str, float]]:
        """Return the straggler seconds of the ranks with the most, and of all others together.

        Which ranks these are may change. The seconds of the others never fall, as a counter must not.
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
        #: Jobs that are over, by how they ended.
        self.jobs: Counter[str] = Counter(ended=0, failed=0, lost=0)
        #: Joins by their result.
        self.joins: Counter[str] = Counter(admitted=0, refused=0)

    def begin(self, label: JobLabel) -> JobTotals:
        """Return the counters of a job that begins.

        Beyond JOB_TOTALS_MAX labels those that were begun first are forgotten, as soon as no job of
        theirs is there.
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
        """Forget labels without a job until there are no more than `limit`, or only labels with one."""
        excess = max(0, len(self.by_label) - limit)
        for old in [old for old, each in self.by_label.items() if not each.live_jobs][:excess]:
            del self.by_label[old]
