"""Compute the output of `reducer status` from the answers of all processes. No terminal, no network.

A job has streams to many processes, and each process knows its own part. Sums, rates and shares are for
all parts together. With two looks, rates and the verdict on stragglers are for the time between them.
With one look there are no rates, and the verdict covers the whole job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reduction.limits import WAITING_RANKS_MAX
from reduction.model import EndedJob, EventKind, JobStatus, Presence, ReducerStatus, Waiting
from reduction.timeline.stragglers import CHUNKS_MIN, Straggler, last_ranks, straggler

from reducer.core.waits import WARN_S
from reducer.observe.ended import ended_jobs


@dataclass(frozen=True, slots=True)
class Process:
    """The answer of one process, or the reason why there is none."""

    address: str
    status: ReducerStatus | None
    reason: str = ""
    #: Whether the user gave this address. Otherwise a sibling named it.
    is_given: bool = True

    @property
    def state(self) -> str:
        """State of the process for the tables."""
        if self.status is None:
            return "no answer"
        return "draining" if self.status.draining else "serving"


@dataclass(frozen=True, slots=True)
class Rates:
    """Payload bytes per second."""

    received: float
    sent: float


def total(rates: Iterable[Rates | None]) -> Rates | None:
    """Return the sum of the known rates, or None if there are none."""
    known = [rate for rate in rates if rate is not None]
    return Rates(sum(rate.received for rate in known), sum(rate.sent for rate in known)) if known else None


@dataclass(frozen=True, slots=True)
class Part:
    """One process's status of a job."""

    now: JobStatus
    #: The answer of the previous look. None if there was none.
    before: JobStatus | None = None
    #: Seconds since the previous look.
    seconds: float = 0.0

    @property
    def rates(self) -> Rates | None:
        """Rates since the previous look. None if there was none."""
        if self.before is None or self.seconds <= 0:
            return None
        received = max(0, self.now.received_bytes - self.before.received_bytes)
        sent = max(0, self.now.sent_bytes - self.before.sent_bytes)
        return Rates(received / self.seconds, sent / self.seconds)


@dataclass(slots=True)
class JobSummary:
    """One job in all processes that serve it."""

    parts: list[Part] = field(default_factory=list)

    @property
    def now(self) -> list[JobStatus]:
        """The answers of the processes about this job."""
        return [part.now for part in self.parts]

    @property
    def title(self) -> str:
        """Name of the job, with its process group."""
        return self.now[0].title

    @property
    def ranks(self) -> str:
        """Ranks that are present in all processes, and all ranks of the job, such as 3/4."""
        present = min(sum(peer.presence is Presence.PRESENT for peer in job.peers) for job in self.now)
        return f"{present}/{self.now[0].world_size}"

    @property
    def state(self) -> str:
        """State of the job: joining, rank lost, ending, waiting, starting or running."""
        seen = {peer.presence for job in self.now for peer in job.peers}
        if self.absent:
            return "joining"
        if Presence.LEFT in seen:
            return "ending"
        if Presence.LOST in seen:
            return "rank lost"
        if self.waiting is not None:
            return "waiting"
        return "running" if all(job.started for job in self.now) else "starting"

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that have not yet joined at all processes."""
        come = [{peer.rank for peer in job.peers} for job in self.now]
        ranks = range(self.now[0].world_size)
        return tuple(rank for rank in ranks if any(rank not in those for those in come))

    @property
    def absent_text(self) -> str:
        """The absent ranks in words, such as "rank 2" or "ranks 1,2,3"; empty if all have joined."""
        if not (absent := self.absent):
            return ""
        shown = ",".join(map(str, absent[:WAITING_RANKS_MAX]))
        more = ",..." if len(absent) > WAITING_RANKS_MAX else ""
        return f"rank{'' if len(absent) == 1 else 's'} {shown}{more}"

    @property
    def waiting(self) -> Waiting | None:
        """The ranks that others have waited for at least as long as before a warning in the log, or None."""
        known = [job.waiting for job in self.now if job.waiting is not None and job.waiting.count]
        longest = max(known, key=lambda waiting: waiting.waited_s, default=None)
        return longest if longest is not None and longest.waited_s >= WARN_S else None

    @property
    def rates(self) -> Rates | None:
        """Rates since the previous look. None if there was none."""
        return total(part.rates for part in self.parts)

    @property
    def latest(self) -> tuple[int, float, float] | None:
        """The rank that was most often the last, its share of the chunks, and their average wait.

        None while there are too few chunks.
        """
        counts, waits = self._counts
        chunks = sum(counts.values())
        if chunks < CHUNKS_MIN:
            return None
        rank = max(counts, key=lambda number: counts[number])
        return rank, counts[rank] / chunks, waits[rank] / counts[rank]

    @property
    def straggler(self) -> Straggler | None:
        """The rank that others wait for, its share of the chunks, and their average wait."""
        counts, waits = self._counts
        return straggler(counts, waits, self.now[0].world_size)

    @property
    def _counts(self) -> tuple[dict[int, int], dict[int, float]]:
        """How often each rank was recently the last, or since the job's start if that is too rare, and the waits."""
        counts, waits = self._last()
        if sum(counts.values()) < CHUNKS_MIN:
            counts, waits = self._last(since_before=False)
        return counts, waits

    @property
    def slowest(self) -> str:
        """The verdict for a column of the table."""
        if (waiting := self.waiting) is not None:
            return f"rank {waiting.numbers}: {waiting.waited_s:.0f} s"
        if absent := self.absent_text:
            return f"no {absent}"
        if (found := self.straggler) is not None:
            return f"rank {found.rank}"
        return "no straggler" if self.has_chunks else "too early"

    @property
    def verdict(self) -> str:
        """The verdict as a sentence."""
        if (waiting := self.waiting) is not None:
            return f"has been waiting for {waiting} for {waiting.waited_s:.0f} s"
        if absent := self.absent_text:
            return f"waits for {absent} to join"
        if (found := self.straggler) is None:
            return "no straggler" if self.has_chunks else f"fewer than {CHUNKS_MIN} chunks: too early to tell"
        rank, share, wait_s = found
        return f"rank {rank} ({self.host_of(rank)}) is last {share * 100:.0f} % of the time, by {wait_s * 1e3:.1f} ms"

    def host_of(self, rank: int) -> str:
        """Return the host of a rank, or a question mark if unknown."""
        return next((peer.host for job in self.now for peer in job.peers if peer.rank == rank), "?")

    @property
    def has_chunks(self) -> bool:
        """Whether there are enough chunks for a verdict."""
        return sum(entry.chunks for job in self.now for entry in job.last) >= CHUNKS_MIN

    def is_of(self, part: JobStatus) -> bool:
        """Return whether a part belongs to this job, with the same name and at least one rank in common."""
        known = {(peer.rank, peer.nonce) for other in self.now for peer in other.peers}
        return part.title == self.title and any((peer.rank, peer.nonce) in known for peer in part.peers)

    def _last(self, *, since_before: bool = True) -> tuple[dict[int, int], dict[int, float]]:
        """Return how often each rank was the last, and how long chunks waited for it."""
        return last_ranks((part.now, part.before if since_before else None) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Summary:
    """One look at all processes, compared with the previous look if there was one."""

    processes: Sequence[Process]
    jobs: Sequence[JobSummary]
    #: Rates by address. A process without a previous look has none.
    rates: dict[str, Rates]
    #: Ended jobs, the latest last.
    ended: Sequence[EndedJob]

    @property
    def answers(self) -> list[ReducerStatus]:
        """The answers of the processes that answered."""
        return [process.status for process in self.processes if process.status is not None]

    @property
    def total_rates(self) -> Rates | None:
        """Rates of all processes together. None without a previous look."""
        return total(self.rates.values())

    @property
    def memory_reserved_bytes(self) -> int:
        """Bytes that jobs have reserved in all processes that answered."""
        return sum(answer.memory_reserved_bytes for answer in self.answers)

    @property
    def memory_limit_bytes(self) -> int:
        """Bytes that jobs may reserve in all processes that answered."""
        return sum(answer.memory_limit_bytes for answer in self.answers)

    @property
    def resident_bytes(self) -> int:
        """Resident memory of all processes that answered. Memory shared by several counts for each."""
        return sum(answer.resident_bytes for answer in self.answers)


def groups(processes: Sequence[Process]) -> list[list[Process]]:
    """Return the processes of each `reducer serve`, with its first process first."""
    found: list[list[Process]] = []
    #: The group of each sibling that a process has named.
    homes: dict[str, list[Process]] = {}
    for process in processes:
        home = homes.get(process.address)
        if home is not None:
            home.append(process)
            continue
        found.append(group := [process])
        if process.status is not None:
            host = process.address.rpartition(":")[0]
            homes |= {f"{host}:{port}": group for port in process.status.siblings}
    return found


def summarize(processes: Sequence[Process], before: Sequence[Process] = ()) -> Summary:
    """Combine the answers of one look."""
    former = {process.status.incarnation: process.status for process in before if process.status is not None}
    jobs: list[JobSummary] = []
    rates: dict[str, Rates] = {}
    for process in processes:
        if (status := process.status) is None:
            continue
        old = former.get(status.incarnation)
        seconds = 0.0 if old is None else status.uptime_seconds - old.uptime_seconds
        parts = [Part(job, None if old is None else _same(job, old.jobs), seconds) for job in status.jobs]
        for part in parts:
            summary = next((known for known in jobs if known.is_of(part.now)), None)
            if summary is None:
                jobs.append(summary := JobSummary())
            summary.parts.append(part)
        known = total(part.rates for part in parts) if parts else Rates(0.0, 0.0)
        if old is not None and known is not None:  # None: its jobs have begun since the previous look
            rates[process.address] = known
    answers = (process.status for process in processes if process.status is not None)
    return Summary(processes, jobs, rates, ended_jobs(answers))


def _same(part: JobStatus, others: Sequence[JobStatus]) -> JobStatus | None:
    own = JobSummary([Part(part)])
    return next((other for other in others if own.is_of(other)), None)


def to_json(summary: Summary) -> dict[str, Any]:
    """Return the output of `--json`: the answers of all processes, and the jobs combined."""
    return {
        "processes": [
            _process_json(process, summary.rates.get(process.address)) for process in summary.processes
        ],
        "jobs": [_job_json(job) for job in summary.jobs],
        "ended": [asdict(job) | {"outcome": job.outcome.name.lower()} for job in summary.ended],
        "total": {
            "processes": len(summary.processes),
            "answered": len(summary.answers),
            "jobs": len(summary.jobs),
            "memory_reserved_bytes": summary.memory_reserved_bytes,
            "memory_limit_bytes": summary.memory_limit_bytes,
            "resident_bytes": summary.resident_bytes,
            **_rates_json(summary.total_rates),
        },
    }


def _process_json(process: Process, rates: Rates | None) -> dict[str, Any]:
    start = {"address": process.address, "state": process.state}
    if process.status is None:
        return start | {"reason": process.reason}
    answer = asdict(process.status)
    del answer["ended"]  # they are listed next to the jobs
    for job in answer["jobs"]:
        for peer in job["peers"]:
            peer["presence"] = Presence(peer["presence"]).name.lower()
        for peer in (job["waiting"] or {"missing": ()})["missing"]:
            peer["presence"] = Presence(peer["presence"]).name.lower()
    for event in answer["events"]:
        event["kind"] = EventKind(event["kind"]).name.lower()
    return start | _rates_json(rates) | answer


def _job_json(job: JobSummary) -> dict[str, Any]:
    return {
        "job": job.now[0].job,
        "group": job.now[0].group,
        "world_size": job.now[0].world_size,
        "ranks": job.ranks,
        "state": job.state,
        "processes": len(job.parts),
        "received_bytes": sum(part.now.received_bytes for part in job.parts),
        "sent_bytes": sum(part.now.sent_bytes for part in job.parts),
        **_rates_json(job.rates),
        "straggler": None if job.straggler is None else job.straggler[0],
        "waits_for": list(job.absent) if job.waiting is None else [peer.rank for peer in job.waiting.missing],
        "verdict": job.verdict,
    }


def _rates_json(rates: Rates | None) -> dict[str, float]:
    if rates is None:
        return {}
    return {"received_bytes_per_s": rates.received, "sent_bytes_per_s": rates.sent}
