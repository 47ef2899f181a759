"""The answer of a Status call: a reducer and its jobs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from reduction.model.job import Peer, Waiting, job_title


@dataclass(frozen=True, slots=True)
class LastRank:
    """How often chunks waited for a rank, and for how long in total."""

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
    """Number of streams on each data plane."""

    grpc: int = 0
    tcp: int = 0
    #: Streams that use memory shared by rank and reducer.
    shared: int = 0


class EventKind(enum.IntEnum):
    """Kind of an event at a reducer, with the numbers of the schema."""

    JOINED = 1
    EPOCH = 2
    LOST = 3
    FAILED = 4
    ENDED = 5
    DRAINING = 6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a reducer process, for people who watch it."""

    #: Sequence number of the event in its process, from 1.
    number: int
    #: The uptime of the process at the event, in seconds.
    at_s: float
    kind: EventKind
    #: Title of the job. Empty if the event concerns the whole process.
    job: str
    #: Description, printable.
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
    #: The most bytes that any rank has pushed and not yet received results for.
    under_way_bytes: int
    #: Ranks that were the last to push a chunk, ascending.
    last: tuple[LastRank, ...] = ()
    waits: WaitTimes = WaitTimes()
    #: The ranks of the process group, as in `Join`.
    group: str = ""
    #: Number of streams of present ranks on each data plane.
    planes: Planes = Planes()
    #: The ranks that the others are currently waiting for. None if nothing has waited long enough to be reported.
    waiting: Waiting | None = None

    @property
    def title(self) -> str:
        """The job's name in messages and tables, unique at the reducer."""
        return job_title(self.job, self.group)


class Outcome(enum.IntEnum):
    """How a job ended, with the numbers of the schema."""

    #: Every rank sent Goodbye.
    ENDED = 1
    #: The job ended with an error.
    FAILED = 2
    #: All streams broke.
    LOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """An ended job as a reducer process saw it."""

    job: str
    group: str = ""
    world_size: int
    #: Identifier of the job, the same at all reducers that served it.
    id: bytes
    outcome: Outcome
    #: Collectives whose results every rank held.
    collectives: int
    received_bytes: int
    sent_bytes: int
    #: Duration from the first epoch to the end.
    seconds: float
    #: Seconds since the job ended.
    ago_s: float = 0.0
    #: The rank that chunks waited for the longest.
    waited_for: int = 0
    #: Wall-clock seconds in which at least one chunk waited only for this rank.
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
    #: CPU time of the process, user and system.
    cpu_seconds: float = 0.0
    #: Resident memory of the process, including memory shared with ranks. 0 if it is not known.
    resident_bytes: int = 0
    #: The latest events, oldest first.
    events: tuple[Event, ...] = ()
    #: The latest jobs that started and have ended, oldest first.
    ended: tuple[EndedJob, ...] = ()
