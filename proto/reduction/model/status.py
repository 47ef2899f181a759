"""The answer of a Status call: a reducer and its jobs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from reduction.model.job import Peer, Waiting, job_title


@dataclass(frozen=True, slots=True)
class LastRank:
    """How often chunks waited for a rank, and how long in all."""

    rank: int
    chunks: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """Percentiles of the time from a chunk's first push to its last, in seconds."""

    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planes:
    """How many streams are on which data plane."""

    grpc: int = 0
    tcp: int = 0
    #: Memory that the rank shares with the reducer.
    shared: int = 0


class EventKind(enum.IntEnum):
    """What happened at a reducer; the numbers are those of the schema."""

    JOINED = 1
    EPOCH = 2
    LOST = 3
    FAILED = 4
    ENDED = 5
    DRAINING = 6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a reducer process, for people who watch it."""

    #: Counts the events of the process, from 1.
    number: int
    #: The uptime of the process when it happened, in seconds.
    at_s: float
    kind: EventKind
    #: Title of the job. Empty if the event concerns the whole process.
    job: str
    #: What happened, printable.
    text: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job as a reducer sees it."""

    job: str
    world_size: int
    peers: tuple[Peer, ...]
    epoch: int
    started: bool
    minimum: int
    open_slots: int
    reserved_bytes: int
    received_bytes: int
    sent_bytes: int
    chunk_bytes: int
    credit_bytes: int
    #: The most bytes that any rank has pushed at this moment without having their results.
    under_way_bytes: int
    #: Ranks that were the last to push a chunk, ascending.
    last: tuple[LastRank, ...] = ()
    waits: WaitTimes = WaitTimes()
    #: The ranks of the process group, as in `Join`.
    group: str = ""
    #: How many streams of the ranks that are present use each data plane.
    planes: Planes = Planes()
    #: Whom the ranks wait for at this moment. None if nothing has waited long enough to say so.
    waiting: Waiting | None = None

    @property
    def title(self) -> str:
        """The job's name in messages and tables, which no other job of the reducer has."""
        return job_title(self.job, self.group)


class Outcome(enum.IntEnum):
    """How a job came to its end; the numbers are those of the schema."""

    #: Every rank said goodbye.
    ENDED = 1
    #: With an error.
    FAILED = 2
    #: All streams broke.
    LOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that is over, as a reducer process saw it."""

    job: str
    group: str = ""
    world_size: int
    #: The same at all reducers that served it.
    id: bytes
    outcome: Outcome
    #: Collectives whose results every rank held.
    collectives: int
    received_bytes: int
    sent_bytes: int
    #: From its first epoch to its end.
    seconds: float
    #: How long ago it ended, in seconds.
    ago_s: float = 0.0
    #: The rank that chunks waited for the longest.
    waited_for: int = 0
    #: Wall-clock seconds in which at least one chunk waited for this rank and for no other.
    waited_s: float = 0.0

    @property
    def title(self) -> str:
        """The job's name in messages and tables."""
        return job_title(self.job, self.group)


@dataclass(frozen=True, slots=True)
class ReducerStatus:
    """One reducer process."""

    version: str
    incarnation: bytes
    uptime_seconds: float
    draining: bool
    memory_reserved_bytes: int
    memory_limit_bytes: int
    jobs: tuple[JobStatus, ...]
    #: gRPC ports of the other processes of the same `reducer serve`.
    siblings: tuple[int, ...] = ()
    #: Processor time that the process has used, in user and system mode.
    cpu_seconds: float = 0.0
    #: Its resident memory, with what it shares with ranks. 0 if it is not known.
    resident_bytes: int = 0
    #: The latest events, oldest first.
    events: tuple[Event, ...] = ()
    #: The latest jobs that started and are over, oldest first.
    ended: tuple[EndedJob, ...] = ()
