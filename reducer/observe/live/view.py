"""One look at all processes as rows, one per job and one per `reducer serve`. No terminal, no network.

The processes of one `reducer serve` are siblings. The first one advertises the ports of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reduction.model import ReducerStatus

from reducer.observe.live.feed import Entry, Feed
from reducer.observe.summary import JobSummary, Process, Summary, groups, summarize, total


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """The rank that was most often the last to push a chunk."""

    rank: int
    host: str
    #: Share of the chunks for which it was the last, from 0 to 1.
    share: float
    #: Mean time that those chunks waited for it, in seconds.
    wait_s: float
    #: Whether this is more than chance by the rule of `reducer status`.
    is_straggler: bool


@dataclass(frozen=True, slots=True)
class WaitsNow:
    """The ranks that currently hold up all others."""

    #: Numbers of the ranks, such as "1,3".
    ranks: str
    #: Ranks with hosts, such as "rank 1 (a), rank 3 (b)".
    names: str
    #: How long the others have waited, in seconds.
    seconds: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in all processes. Values that need two looks are None after the first."""

    title: str
    ranks: str
    state: str
    epoch: int
    #: Data planes in use, such as "tcp" or "shared+tcp".
    plane: str
    collectives_per_s: float | None
    #: Payload bytes per second that all reducers together receive and send.
    received_per_s: float | None
    sent_per_s: float | None
    #: Percentiles of the time from a chunk's first push to its last, at the slowest process.
    wait_p50_s: float
    wait_p99_s: float
    #: None while there are too few chunks.
    waited_for: WaitedFor | None
    #: None if no rank holds up the others for long.
    waits_now: WaitsNow | None
    #: The ranks that have not joined yet, such as "rank 2"; empty if all have.
    absent: str


@dataclass(frozen=True, slots=True)
class HostRow:
    """One `reducer serve` with all its processes. Values that need two looks are None after the first."""

    address: str
    #: serving, draining, no answer; or how many of its processes answer.
    state: str
    #: Reason for a missing answer. Empty if there is an answer.
    reason: str
    processes: int
    version: str
    uptime_s: float
    #: Cores used by all processes, and by the busiest one. A process cannot use much more than one core.
    cores: float | None
    busiest: float | None
    reserved_bytes: int
    limit_bytes: int
    resident_bytes: int
    streams: int
    received_per_s: float | None
    sent_per_s: float | None


@dataclass(frozen=True, slots=True)
class View:
    """The view after one look."""

    #: Seconds since the epoch by the observer's clock.
    at_s: float
    jobs: tuple[JobRow, ...]
    hosts: tuple[HostRow, ...]
    #: Oldest first.
    events: tuple[Entry, ...]


@dataclass(slots=True)
class Watcher:
    """Comparison of each look with the previous one."""

    _feed: Feed = field(default_factory=Feed)
    _before: Sequence[Process] = ()

    def take(self, processes: Sequence[Process], now_s: float) -> View:
        """Return the view after this look, taken at `now_s` seconds since the epoch."""
        summary = summarize(processes, self._before)
        cores = _cores(processes, self._before)
        self._feed.take(processes, now_s)
        self._before = processes
        return View(
            now_s,
            tuple(map(_job_row, summary.jobs)),
            tuple(_host_row(group, summary, cores) for group in groups(processes)),
            self._feed.entries,
        )


def _cores(processes: Sequence[Process], before: Sequence[Process]) -> dict[str, float]:
    """Return how many cores each process used since the previous look, by address."""
    former = {process.status.incarnation: process.status for process in before if process.status is not None}
    used = {}
    for process in processes:
        status = process.status
        old = None if status is None else former.get(status.incarnation)
        if status is None or old is None:
            continue
        seconds = status.uptime_seconds - old.uptime_seconds
        if seconds > 0:
            used[process.address] = max(0.0, status.cpu_seconds - old.cpu_seconds) / seconds
    return used


def _job_row(job: JobSummary) -> JobRow:
    rates = job.rates
    latest, waiting = job.latest, job.waiting
    collectives = [
        max(0, part.now.minimum - part.before.minimum) / part.seconds
        for part in job.parts
        if part.before is not None and part.seconds > 0
    ]
    return JobRow(
        title=job.title,
        ranks=job.ranks,
        state=job.state,
        epoch=max(now.epoch for now in job.now),
        plane=_plane(job),
        # The minimum is the same everywhere, but some processes learn it later.
        collectives_per_s=max(collectives, default=None),
        received_per_s=None if rates is None else rates.received,
        sent_per_s=None if rates is None else rates.sent,
        wait_p50_s=max(now.waits.p50_s for now in job.now),
        wait_p99_s=max(now.waits.p99_s for now in job.now),
        waited_for=None
        if latest is None
        else WaitedFor(latest[0], job.host_of(latest[0]), latest[1], latest[2], job.straggler is not None),
        waits_now=None if waiting is None else WaitsNow(waiting.numbers, str(waiting), waiting.waited_s),
        absent=job.absent_text,
    )


def _plane(job: JobSummary) -> str:
    counts = {
        "shared": sum(now.planes.shared for now in job.now),
        "tcp": sum(now.planes.tcp for now in job.now),
        "grpc": sum(now.planes.grpc for now in job.now),
    }
    return "+".join(name for name, count in counts.items() if count)


def _streams(status: ReducerStatus) -> int:
    return sum(job.planes.grpc + job.planes.tcp + job.planes.shared for job in status.jobs)


def _host_row(group: Sequence[Process], summary: Summary, cores: dict[str, float]) -> HostRow:
    first = group[0]
    answers = [process.status for process in group if process.status is not None]
    used = [cores[process.address] for process in group if process.address in cores]
    rates = total(summary.rates.get(process.address) for process in group)
    silent = [process for process in group if process.status is None]
    is_partial = bool(silent) and bool(answers)
    return HostRow(
        address=first.address,
        state=f"{len(answers)} of {len(group)}" if is_partial else first.state,
        reason=silent[0].reason if silent else "",
        processes=len(group),
        version=answers[0].version if answers else "",
        uptime_s=answers[0].uptime_seconds if answers else 0.0,
        cores=sum(used) if used else None,
        busiest=max(used, default=None),
        reserved_bytes=sum(answer.memory_reserved_bytes for answer in answers),
        limit_bytes=sum(answer.memory_limit_bytes for answer in answers),
        resident_bytes=sum(answer.resident_bytes for answer in answers),
        streams=sum(map(_streams, answers)),
        received_per_s=None if rates is None else rates.received,
        sent_per_s=None if rates is None else rates.sent,
    )
