"""Combine the reports of reducer processes on ended jobs, and summarise them in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from reduction.model import EndedJob, ReducerStatus
from reduction.text import counted

from reducer.resources.sizes import size_text

#: Shorter waits are not mentioned, in seconds.
SHOWN_S = 0.05


def ended_jobs(answers: Iterable[ReducerStatus]) -> list[EndedJob]:
    """Return each job once, however many processes served it, in the order in which they ended."""
    jobs: dict[tuple[str, bytes], EndedJob] = {}
    for answer in answers:
        for job in answer.ended:
            key = job.title, job.id
            jobs[key] = _combined(jobs[key], job) if key in jobs else job
    return sorted(jobs.values(), key=lambda job: -job.ago_s)


def _combined(one: EndedJob, other: EndedJob) -> EndedJob:
    """Combine two processes' reports on one job. Each has part of the bytes, and sees every collective."""
    longest = max(one, other, key=lambda job: job.waited_s)
    return replace(
        one,
        # A process that the job left before its end reports LOST.
        outcome=min(one.outcome, other.outcome),
        collectives=max(one.collectives, other.collectives),
        received_bytes=one.received_bytes + other.received_bytes,
        sent_bytes=one.sent_bytes + other.sent_bytes,
        seconds=max(one.seconds, other.seconds),
        ago_s=min(one.ago_s, other.ago_s),
        waited_for=longest.waited_for,
        waited_s=longest.waited_s,
    )


def line(jobs: Sequence[EndedJob]) -> str:
    """Return a summary of jobs such as `2 jobs of 4 ranks, 620 collectives, 5.2 GiB in, 5.2 GiB out, ...`."""
    sizes = sorted({job.world_size for job in jobs})
    ranks = f"{sizes[0]} to {counted(sizes[-1], 'rank')}" if len(sizes) > 1 else counted(sizes[0], "rank")
    failed = sum(job.outcome != job.outcome.ENDED for job in jobs)
    longest = max(jobs, key=lambda job: job.waited_s)
    parts = [
        f"{counted(len(jobs), 'job')} of {ranks}" + (f" ({failed} did not end well)" if failed else ""),
        counted(sum(job.collectives for job in jobs), "collective"),
        f"{size_text(sum(job.received_bytes for job in jobs))} in",
        f"{size_text(sum(job.sent_bytes for job in jobs))} out",
    ]
    if longest.waited_s >= SHOWN_S:
        # Other processes may have waited for it at other times.
        of = f" of {longest.title}" if len(jobs) > 1 else ""
        parts.append(f"waited at least {longest.waited_s:.1f} s for rank {longest.waited_for}{of}")
    return ", ".join(parts)
