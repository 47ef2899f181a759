"""What `reducer status` says, computed from the answers of all processes; no terminal, no network.

A job has streams to many processes, and each knows its own part: sums, rates and shares here are those of all
parts together. Rates and the verdict about stragglers are about the time between two looks, or, with one look only,
there are no rates, and the verdict is about the whole life of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reduction.model import JobStatus, Presence, ReducerStatus

#: A rank is a straggler if it is the last to push so large a part of the chunks; of two, chance alone gives a half.
STRAGGLER_SHARE, STRAGGLER_SHARE_OF_TWO = 0.6, 0.75
#: And if the chunks have waited so long for it, in seconds on average.
STRAGGLER_WAIT_S = 0.001
#: Fewer chunks than these say nothing.
CHUNKS_MIN = 16


@dataclass(frozen=True, slots=True)
class Process:
    """What one process has answered, or why it has not."""

    address: str
    status: ReducerStatus | None
    reason: str = ""
    #: Whether its address was given, and not found as a sibling's.
    is_given: bool = True

    @property
    def state(self) -> str:
        """One word or two."""
        if self.status is None:
            return "no answer"
        return "draining" if self.status.draining else "serving"


@dataclass(frozen=True, slots=True)
class Rates:
    """Payload per second."""

    received: float
    sent: float


@dataclass(slots=True)
class JobSummary:
    """One job in all processes that serve it."""

    parts: list[JobStatus] = field(default_factory=list)
    #: The same processes' parts at the look before, None where there is none.
    before: list[JobStatus | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name."""
        return self.parts[0].title

    @property
    def ranks(self) -> str:
        """How many ranks are present in all processes, of how many there are to be."""
        present = min(sum(peer.presence is Presence.PRESENT for peer in part.peers) for part in self.parts)
        return f"{present}/{self.parts[0].world_size}"

    @property
    def state(self) -> str:
        """joining, rank lost, ending, starting or running."""
        seen = {peer.presence for part in self.parts for peer in part.peers}
        if any(len(part.peers) < part.world_size for part in self.parts):
            return "joining"
        if Presence.LEFT in seen:
            return "ending"
        if Presence.LOST in seen:
            return "rank lost"
        return "running" if all(part.started for part in self.parts) else "starting"

    @property
    def rates(self) -> Rates | None:
        """Since the look before; None if there was none."""
        received = sent = 0.0
        known = False
        for part, before, seconds in zip(self.parts, self.before, self.seconds, strict=True):
            if before is not None and seconds > 0:
                known = True
                received += max(0, part.received_bytes - before.received_bytes) / seconds
                sent += max(0, part.sent_bytes - before.sent_bytes) / seconds
        return Rates(received, sent) if known else None

    @property
    def straggler(self) -> tuple[int, float, float] | None:
        """The rank that others wait for, its share of the chunks, and how long these wait on average, in seconds."""
        counts, waits = self._last()
        chunks = sum(counts.values())
        if chunks < CHUNKS_MIN:
            counts, waits = self._last(since_before=False)
            chunks = sum(counts.values())
        if chunks < CHUNKS_MIN:
            return None
        rank = max(counts, key=lambda one: counts[one])
        share, wait_s = counts[rank] / chunks, waits[rank] / counts[rank]
        least = STRAGGLER_SHARE_OF_TWO if self.parts[0].world_size == 2 else STRAGGLER_SHARE
        is_one = self.parts[0].world_size > 1 and share >= least and wait_s >= STRAGGLER_WAIT_S
        return (rank, share, wait_s) if is_one else None

    @property
    def slowest(self) -> str:
        """The verdict in few words."""
        if (found := self.straggler) is not None:
            return f"rank {found[0]}"
        return "no straggler" if self.has_chunks else "too early"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        if (found := self.straggler) is None:
            return "no straggler" if self.has_chunks else f"fewer than {CHUNKS_MIN} chunks: too early to tell"
        rank, share, wait_s = found
        host = next((peer.host for part in self.parts for peer in part.peers if peer.rank == rank), "?")
        return f"rank {rank} ({host}) is last {share:.0%} of the time, by {wait_s * 1e3:.1f} ms".replace(
            "%", " %"
        )

    @property
    def has_chunks(self) -> bool:
        """Whether there is enough to tell who is slow."""
        return sum(one.chunks for part in self.parts for one in part.last) >= CHUNKS_MIN

    def add(self, part: JobStatus, before: JobStatus | None, seconds: float) -> None:
        """Add one process's part."""
        self.parts.append(part)
        self.before.append(before)
        self.seconds.append(seconds)

    def is_of(self, part: JobStatus) -> bool:
        """Whether it is the same life of the same job: some rank is the same process."""
        known = {(peer.rank, peer.nonce) for other in self.parts for peer in other.peers}
        return part.title == self.title and any((peer.rank, peer.nonce) in known for peer in part.peers)

    def _last(self, *, since_before: bool = True) -> tuple[dict[int, int], dict[int, float]]:
        """Return by rank how often it was the last, and how long chunks have waited for it."""
        counts: dict[int, int] = {}
        waits: dict[int, float] = {}
        for part, before in zip(self.parts, self.before, strict=True):
            former = {one.rank: one for one in before.last} if before is not None and since_before else {}
            for one in part.last:
                chunks, waited_s = one.chunks, one.waited_s
                if (old := former.get(one.rank)) is not None:
                    chunks, waited_s = chunks - old.chunks, waited_s - old.waited_s
                if chunks > 0:
                    counts[one.rank] = counts.get(one.rank, 0) + chunks
                    waits[one.rank] = waits.get(one.rank, 0.0) + waited_s
        return counts, waits


@dataclass(frozen=True, slots=True)
class Summary:
    """One look at all processes, compared with the one before if there was one."""

    processes: Sequence[Process]
    jobs: Sequence[JobSummary]
    #: By address; missing where there is no look before.
    rates: dict[str, Rates]

    @property
    def answers(self) -> list[ReducerStatus]:
        """The answers that there are."""
        return [process.status for process in self.processes if process.status is not None]


def summarize(processes: Sequence[Process], before: Sequence[Process] = ()) -> Summary:
    """Put the answers of a look together."""
    former = {one.status.incarnation: one.status for one in before if one.status is not None}
    jobs: list[JobSummary] = []
    rates: dict[str, Rates] = {}
    for process, status in _answered(processes):
        old = former.get(status.incarnation)
        seconds = 0.0 if old is None else status.uptime_seconds - old.uptime_seconds
        received = sent = 0.0
        for part in status.jobs:
            part_before = None if old is None else _same(part, old.jobs)
            job = next((one for one in jobs if one.is_of(part)), None)
            if job is None:
                jobs.append(job := JobSummary())
            job.add(part, part_before, seconds)
            if part_before is not None and seconds > 0:
                received += max(0, part.received_bytes - part_before.received_bytes) / seconds
                sent += max(0, part.sent_bytes - part_before.sent_bytes) / seconds
        if old is not None:
            rates[process.address] = Rates(received, sent)
    return Summary(processes, jobs, rates)


def _answered(processes: Sequence[Process]) -> Iterator[tuple[Process, ReducerStatus]]:
    for process in processes:
        if process.status is not None:
            yield process, process.status


def _same(part: JobStatus, others: Sequence[JobStatus]) -> JobStatus | None:
    own = JobSummary([part], [None], [0.0])
    return next((other for other in others if own.is_of(other)), None)


def to_json(summary: Summary) -> dict[str, Any]:
    """Return what `--json` prints: all processes as they answered, and the jobs of all of them together."""
    return {
        "processes": [
            _process_json(process, summary.rates.get(process.address)) for process in summary.processes
        ],
        "jobs": [_job_json(job) for job in summary.jobs],
        "total": {
            "processes": len(summary.processes),
            "answered": len(summary.answers),
            "jobs": len(summary.jobs),
            "memory_reserved_bytes": sum(one.memory_reserved_bytes for one in summary.answers),
            "memory_limit_bytes": sum(one.memory_limit_bytes for one in summary.answers),
            **_rates_json(_sum(summary.rates.values()) if summary.rates else None),
        },
    }


def _process_json(process: Process, rates: Rates | None) -> dict[str, Any]:
    start = {"address": process.address, "state": process.state}
    if process.status is None:
        return start | {"reason": process.reason}
    answer = asdict(process.status)
    for job in answer["jobs"]:
        for peer in job["peers"]:
            peer["presence"] = Presence(peer["presence"]).name.lower()
    return start | _rates_json(rates) | answer


def _job_json(job: JobSummary) -> dict[str, Any]:
    return {
        "job": job.parts[0].job,
        "group": job.parts[0].group,
        "world_size": job.parts[0].world_size,
        "ranks": job.ranks,
        "state": job.state,
        "processes": len(job.parts),
        "received_bytes": sum(part.received_bytes for part in job.parts),
        "sent_bytes": sum(part.sent_bytes for part in job.parts),
        **_rates_json(job.rates),
        "straggler": None if job.straggler is None else job.straggler[0],
        "verdict": job.verdict,
    }


def _rates_json(rates: Rates | None) -> dict[str, float]:
    if rates is None:
        return {}
    return {"received_bytes_per_s": rates.received, "sent_bytes_per_s": rates.sent}


def _sum(rates: Any) -> Rates:
    every = list(rates)
    return Rates(sum(one.received for one in every), sum(one.sent for one in every))
