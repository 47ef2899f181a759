"""Log lines about streams and jobs. Every line names the job and the rank that it concerns.

    join job=J rank=1/3 host=H                         a rank's stream is attached
    job started job=J ranks=3                          all ranks are present for the first time
    lost job=J rank=1 host=H reason=...                its stream broke; it may dial again
    closed stream job=J rank=0,1,2 error=E reason=...  why a job or one stream was ended
    refused job=J rank=1 error=E reason=...            a rank was never attached
    refused a call error=E reason=...                  a call ended before its Join
    job ended job=J ranks=3 collectives=... received_bytes=... sent_bytes=... seconds=... last_rank=1 last_share=0.93

`last_rank` is the rank that was most often the last to push, and `last_share` its share of the chunks.

A peer can cause each of these lines, so all go through `Repeats`, by the peer's address and our error. Lines
about attached jobs, and every new epoch, are also kept as events for the Status call, and so are the latest
ended jobs. The journal makes no decisions. The engine notifies it of events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from reduction.errors import JobBusy, ReducerDraining, ReductionError, StaleInstance
from reduction.log_limit import Repeats
from reduction.model import Configuration, EndedJob, Event, EventKind, Join, job_title
from reduction.text import counted

from reducer.core.job import Job
from reducer.recent import Recent

log = logging.getLogger(__name__)

#: A line names at most this many ranks.
RANKS_MAX = 8
#: Refusals that are part of a normal drain or of a job's restart. The worker tries another reducer or retries, and its
#: own log tells whether that failed.
EXPECTED = (JobBusy, ReducerDraining, StaleInstance)
#: Burst of lines about jobs per host: 8 ranks join, and their job starts and ends.
JOB_LINES_BURST = 12


@dataclass(slots=True)
class _Caller:
    """The owner of a stream."""

    #: The caller's host according to the kernel, without the port, which differs for each connection.
    peer: str
    #: Job, rank and host from the Join; question marks before it.
    job: str = "?"
    rank: int | str = "?"
    host: str = "?"
    is_attached: bool = False


@dataclass(slots=True)
class _Life:
    """A present job."""

    job: Job
    since: float
    #: As in `_Caller`, for the job's first rank.
    peer: str = ""
    is_started: bool = False
    #: Configuration of the latest epoch that started.
    configuration: Configuration | None = None


class Journal:
    """The log of one engine."""

    def __init__(self, clock: Callable[[], float], lines: Repeats) -> None:
        self._clock = clock
        self._lines = lines
        self._recent = Recent(clock)
        self._callers: dict[int, _Caller] = {}
        self._lives: dict[int, _Life] = {}
        self._closes: list[tuple[int, ReductionError]] = []

    @property
    def events(self) -> tuple[Event, ...]:
        """The latest events, oldest first."""
        return self._recent.events()

    @property
    def ended(self) -> tuple[EndedJob, ...]:
        """The latest jobs that started and have ended, oldest first."""
        return self._recent.ended()

    def on_open(self, stream: int, peer: str) -> None:
        """Record the origin of a stream in gRPC's notation."""
        self._callers[stream] = _Caller(_host(peer))

    def introduce(self, stream: int, join: Join) -> None:
        """Record the job and rank that a stream names, before it is admitted or refused."""
        caller = self._callers[stream]
        if caller.rank == "?":
            caller.job, caller.rank, caller.host = job_title(join.job, join.group), join.rank, join.host

    def label(self, stream: int) -> str:
        """Return the job and the rank of an open stream, for a log line."""
        caller = self._callers.get(stream, _Caller(""))
        return f"job={caller.job} rank={caller.rank}"

    def on_welcome(self, stream: int, job: Job) -> None:
        """Log that a rank is attached."""
        caller = self._callers[stream]
        caller.is_attached = True
        self._lives.setdefault(job.id, _Life(job, self._clock())).peer = caller.peer
        where = caller.job, caller.rank, job.world_size, caller.host
        self._tell_of_job(caller.peer, "join job=%s rank=%d/%d host=%s", *where)
        self._recent.add(
            EventKind.JOINED, caller.job, f"rank {caller.rank} of {job.world_size} joined from {caller.host}"
        )

    def on_start(self, job: Job) -> None:
        """Log that all ranks of a job are present, unless that was logged before.

        The engine calls this for each rank that is sent the epoch's Start.
        """
        life = self._lives.setdefault(job.id, _Life(job, self._clock()))
        if job.configuration != life.configuration:
            why = _change(life.configuration, job.configuration)
            self._recent.add(
                EventKind.EPOCH,
                job.title,
                f"membership epoch {job.epoch} started with {counted(job.world_size, 'rank')}{why}",
            )
            life.configuration = job.configuration
        if not life.is_started:
            life.is_started, life.since = True, self._clock()
            self._tell_of_job(life.peer, "job started job=%s ranks=%d", job.title, job.world_size)

    def on_close(self, stream: int, error: ReductionError | None) -> None:
        """Record that a stream ends. `settle` logs an error once for all the streams it ends."""
        if error is None:
            self._callers.pop(stream, None)
        else:
            self._closes.append((stream, error))

    def on_lost(self, stream: int, reason: str) -> None:
        """Log that a stream broke."""
        caller = self._callers.pop(stream, None)
        if caller is not None and caller.is_attached:
            what = caller.job, caller.rank, caller.host, reason
            self._tell_of_job(caller.peer, "lost job=%s rank=%d host=%s reason=%s", *what)
            self._recent.add(
                EventKind.LOST, caller.job, f"rank {caller.rank} on {caller.host} lost: {reason}"
            )

    def on_drain(self) -> None:
        """Record that the reducer accepts no more jobs. The process logs this itself."""
        self._recent.add(EventKind.DRAINING, "", "draining: its jobs are asked to leave")

    def on_refused_call(self, peer: str, error: ReductionError) -> None:
        """Log that a call was refused before its Join.

        Args:
            peer: the origin of the call in gRPC's notation, such as ipv4:10.0.0.1:41234.
            error: why it was refused.
        """
        kind = type(error).__name__
        text = "refused a call error=%s reason=%s"
        self._lines.log(log, logging.WARNING, f"refused call {kind}", _host(peer), text, kind, error)

    def has_news(self, job_count: int) -> bool:
        """Return whether `settle` has something to log when `job_count` jobs are present."""
        return bool(self._closes) or job_count != len(self._lives)

    def settle(self, jobs: Collection[Job]) -> None:
        """Log the streams that an event closed, and the jobs that it ended."""
        closes, self._closes = self._closes, []
        while closes:
            error = closes[0][1]  # one object for all streams of a job that failed
            self._tell([stream for stream, other in closes if other is error], error)
            closes = [close for close in closes if close[1] is not error]
        present = {job.id: job for job in jobs}
        for life in [life for number, life in self._lives.items() if number not in present]:
            self._tell_end(self._lives.pop(life.job.id))
        for number, job in present.items():
            self._lives.setdefault(number, _Life(job, self._clock()))

    def _tell(self, streams: list[int], error: ReductionError) -> None:
        callers = [caller for stream in streams if (caller := self._callers.pop(stream, None)) is not None]
        if not callers:
            return
        kind, first = type(error).__name__, callers[0]
        ranks = [str(caller.rank) for caller in callers[:RANKS_MAX]] + ["..."] * (len(callers) > RANKS_MAX)
        is_attached = any(caller.is_attached for caller in callers)
        what = "closed stream" if is_attached else "refused"
        args = what, first.job, ",".join(ranks), kind, error
        text = "%s job=%s rank=%s error=%s reason=%s"
        level = logging.INFO if isinstance(error, EXPECTED) and not is_attached else logging.WARNING
        self._lines.log(log, level, f"{what} {kind}", first.peer, text, *args)
        if is_attached:
            self._recent.add(EventKind.FAILED, first.job, f"rank {','.join(ranks)}: {kind}: {error}")

    def _tell_end(self, life: _Life) -> None:
        job = life.job
        seconds = self._clock() - life.since
        if not life.is_started:
            there = f"{len(job.ranks)}/{job.world_size}"
            text = "job ended before it started job=%s ranks=%s seconds=%.1f"
            self._tell_of_job(life.peer, text, job.title, there, seconds)
            self._recent.add(EventKind.ENDED, job.title, f"ended before it started, with {there} ranks")
            return
        self._tell_of_job(
            life.peer,
            "job ended job=%s ranks=%d collectives=%d received_bytes=%d sent_bytes=%d seconds=%.1f%s",
            job.title,
            job.world_size,
            job.minimum,
            job.received_bytes,
            job.sent_bytes,
            seconds,
            _slowest(job),
        )
        self._recent.add(EventKind.ENDED, job.title, f"ended after {seconds:.0f} s")
        self._recent.end(job, seconds)

    def _tell_of_job(self, peer: str, text: str, *args: object) -> None:
        self._lines.log(log, logging.INFO, "job", peer, text, *args, burst=JOB_LINES_BURST)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0] or peer


def _change(before: Configuration | None, now: Configuration | None) -> str:
    """Return the changes of an epoch as far as a reducer can see. Only rank 0 knows the reason."""
    if before is None or now is None:
        return ""
    old, new = (
        {member.incarnation: member.address for member in configuration.members}
        for configuration in (before, now)
    )
    changes = [f"without {old[incarnation]}" for incarnation in old if incarnation not in new]
    changes += [f"with {new[incarnation]}" for incarnation in new if incarnation not in old]
    if now.chunk_bytes != before.chunk_bytes:
        changes.append(f"chunks of {now.chunk_bytes} bytes")
    if now.added != before.added:
        changes.append(f"reducers found: {', '.join(now.added) or 'none'}")
    return f": {', '.join(changes) or 'a stream had broken'}"


def _slowest(job: Job) -> str:
    last = job.waits.last()
    if not last:
        return ""
    rank = max(last, key=lambda one: one.chunks)
    share = rank.chunks / sum(one.chunks for one in last)
    return f" last_rank={rank.rank} last_share={share:.2f}"
