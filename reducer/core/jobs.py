"""All jobs of one reducer: admission of ranks, memory of jobs, and owners of streams.

The answer to a Join depends on the reducer's state of the job of that name:

    no such job                              create one, if memory allows and the
                                             reducer is not draining
    its instance recently failed here        the same error again
    the same process (nonce) as before       a reconnect: attach
    rank 0, another live rank 0 present      JobBusy
    rank 0, the old one is gone              the job was restarted: end the old
                                             instance and start over
    another rank that is present             RankTaken
    another rank, unknown here               attach; StaleInstance if it names another
                                             instance than rank 0's
    another rank, known but gone, new nonce  rank 0 is present: JobBusy; rank 0 is gone: start over;
                                             rank 0 has not joined yet: attach
    a rank of another run                    rank 0 is present: JobBusy. Otherwise rank 0 of the new run starts
                                             over. Any other rank starts over once rank 0 and the previous
                                             process of its own rank are gone; until then it gets JobBusy
    another world size or local size         JobBusy; while the job is forming,
                                             CollectiveMismatch for all ranks
    the rank has other reducers              while the job is forming, CollectiveMismatch for all ranks

Jobs do not know each other. They share only the memory limit and this table.
"""

from __future__ import annotations

from collections import OrderedDict

from reduction.errors import (
    CollectiveMismatch,
    DataCorrupted,
    JobBusy,
    OutOfOrder,
    RankTaken,
    ReducerDraining,
    ReductionError,
    ResourceExhausted,
    StaleInstance,
    UnsupportedVersion,
)
from reduction.limits import (
    CREDIT_BYTES_LEAST,
    FAILURES_MAX,
    JOB_FIXED_BYTES,
    STREAMS_MAX,
)
from reduction.model import (
    NOWHERE,
    PROTOCOL_VERSION,
    Abort,
    DType,
    Join,
    Outcome,
    Place,
    WorkerFrame,
    job_title,
)

from reducer.core.actions import Action, Close, Send
from reducer.core.events import Drain, Ended, Lost, Received, ReducerEvent, Rejected, Tick
from reducer.core.fair_shares import SHARE, Shares, account_of
from reducer.core.job import Job, JobFailed
from reducer.core.reservations import grant, reservation
from reducer.core.totals import Totals, job_label

_DTYPES = frozenset(map(int, DType))
_OF_SHARES = f"a job with its groups, like a token with its jobs, gets {SHARE} of what others leave"


class Jobs:
    """All jobs and streams of a reducer.

    `handle` takes one event, and returns the actions that the caller performs in order.
    """

    def __init__(self, *, incarnation: bytes, memory_limit_bytes: int, place: Place = NOWHERE) -> None:
        self.incarnation = incarnation
        self.place = place
        #: Memory reserved by the present jobs.
        self.memory = Shares(memory_limit_bytes)
        #: Streams for all ranks of the present jobs, whether these have joined or not.
        self.seats = Shares(STREAMS_MAX)
        self.is_draining = False
        #: Jobs by name and process group, because each group of a job counts as a separate job.
        self.by_name: dict[tuple[str, str], Job] = {}
        #: The job and rank of each stream that has joined.
        self.streams: dict[int, tuple[Job, int]] = {}
        #: Errors of failed instances, by job name and instance, for ranks that join late.
        self.failures: OrderedDict[tuple[str, bytes], ReductionError] = OrderedDict()
        #: Counters since the start.
        self.totals = Totals()
        self._job_count = 0

    @property
    def memory_limit_bytes(self) -> int:
        """Maximum bytes that all jobs may reserve."""
        return self.memory.limit

    @property
    def memory_reserved_bytes(self) -> int:
        """Bytes that the present jobs have reserved."""
        return self.memory.taken

    def has_checksums(self, stream: int) -> bool:
        """Return whether pushes on a stream have checksums."""
        owner = self.streams.get(stream)
        return owner is not None and owner[0].has_checksums

    def note_sent(self, stream: int, nbytes: int) -> None:
        """Count the payload of a result, whose size is known only after encoding."""
        owner = self.streams.get(stream)
        if owner is not None:
            owner[0].sent_bytes += nbytes

    def note_reduced(self, stream: int, seconds: float) -> None:
        """Record the time from a chunk's last push until its result was passed to all streams.

        Args:
            stream: one of the streams that received the result.
            seconds: the measured time.
        """
        owner = self.streams.get(stream)
        if owner is not None:
            owner[0].totals.chunk_reduces.add(seconds)

    def sending(self) -> list[int]:
        """Return the streams of jobs that have sent results since the last call."""
        streams = []
        for job in self.by_name.values():
            if job.sent_bytes != job.looked_at_bytes:
                job.looked_at_bytes = job.sent_bytes
                streams += job.streams()
        return streams

    def handle(self, event: ReducerEvent, now: float) -> list[Action]:
        """Handle one event at time `now` (seconds, monotonic). Never raises, whatever a peer sent."""
        match event:
            case Received(stream, frame):
                return self._on_frame(stream, frame, now)
            case Rejected(stream, error):
                return self._refuse(stream, error)
            case Lost(stream):
                return self._on_lost(stream)
            case Ended(name, group, rank, nonce):
                job = self.by_name.get((name, group))
                return [] if job is None else job.on_ended(rank, nonce)
            case Tick(sent, key):
                if key is None:
                    return [action for job in self.by_name.values() for action in job.on_tick(sent, now)]
                job = self.by_name.get(key)
                return [] if job is None else job.on_tick(sent, now)
            case Drain():
                self.is_draining = True
                return [action for job in self.by_name.values() for action in job.drain()]

    def _on_frame(self, stream: int, frame: WorkerFrame, now: float) -> list[Action]:
        if stream not in self.streams:
            if not isinstance(frame, Join):
                return self._refuse(
                    stream, OutOfOrder(f"the first frame of a stream is a Join, not a {type(frame).__name__}")
                )
            try:
                actions = self._on_join(stream, frame)
            except ReductionError as error:
                actions = self._refuse(stream, error)
            self.totals.joins["admitted" if stream in self.streams else "refused"] += 1
            return actions
        job, rank = self.streams[stream]
        try:
            actions = job.on_frame(rank, frame, now)
        except JobFailed as failure:
            return self._fail(job, failure.error)
        except ReductionError as error:
            return self._refuse(stream, error)
        if not job.is_present(rank):  # its frame was a Goodbye
            del self.streams[stream]
            actions += self._forget_if_deserted(job)
        return actions

    # ---- joining ----

    def _on_join(self, stream: int, join: Join) -> list[Action]:
        if join.protocol != PROTOCOL_VERSION:
            raise UnsupportedVersion(
                f"rank {join.rank} speaks protocol version {join.protocol}, but this reducer {PROTOCOL_VERSION}"
            )
        if join.wire_dtype and join.wire_dtype not in _DTYPES:
            known = ", ".join(f"{dtype.value} {dtype.name}" for dtype in DType)
            raise UnsupportedVersion(
                f"rank {join.rank} wants wire dtype {join.wire_dtype}, but this reducer supports {known}; "
                f"install the same version on both sides"
            )
        if join.instance and (join.job, join.instance) in self.failures:
            before = self.failures[join.job, join.instance]
            # A copy, because raising the same error again would grow its traceback.
            raise type(before)(*before.args)
        actions: list[Action] = []
        job = self.by_name.get((join.job, join.group))
        if job is not None and self._starts_over(job, join):
            self._grant(join, job)  # before the old one ends
            actions += self._fail(job, _ended_by(job, join))
            job = None
        if job is None:
            try:
                job = self._make(join)
            except ReductionError as error:
                return actions + self._refuse(stream, error)  # `actions` end the old job's ranks
        elif (join.world_size, join.local_size) != (job.world_size, job.local_size):
            setting, theirs, ours = "world size", join.world_size, job.world_size
            if theirs == ours:
                setting, theirs, ours = "local size", join.local_size, job.local_size
            mismatch = CollectiveMismatch(
                f"rank {join.rank} ({join.host}) has {setting} {theirs}, but other ranks of job {job.title!r} "
                f"have {ours}"
            )
            if job.epoch:
                raise JobBusy(f"job {job.title!r} is live with {setting} {ours}: {mismatch}")
            return self._fail(job, mismatch) + self._refuse(stream, mismatch)
        elif (otherwise := job.was_told_otherwise(join)) is not None:
            return self._fail(job, otherwise) + self._refuse(stream, otherwise)
        if join.rank == 0:
            actions += self._end_strangers(job, join)
        if (old := job.stream_of(join.rank)) is not None:
            del self.streams[old]
        actions += job.on_join(stream, join)
        self.streams[stream] = (job, join.rank)
        return actions

    def _end_strangers(self, job: Job, join: Join) -> list[Action]:
        """Remove ranks of any instance other than that in rank 0's Join."""
        stale = StaleInstance(f"job {join.job!r} was restarted by rank 0 on {join.host}")
        strangers = [rank for rank, view in job.ranks.items() if view.instance not in (b"", join.instance)]
        actions: list[Action] = []
        for rank in strangers:
            for stream in [stream for stream, owner in self.streams.items() if owner == (job, rank)]:
                actions += [Send(stream, Abort(stale.code, str(stale))), Close(stream, stale)]
                del self.streams[stream]
            del job.ranks[rank]
        return actions

    def _starts_over(self, job: Job, join: Join) -> bool:
        """Return whether this Join starts the job's next instance.

        Raises:
            ReductionError: the rank may not join at all.
        """
        known = job.ranks.get(join.rank)
        title = job_title(join.job, join.group)
        who = f"rank {join.rank} of job {title!r}"
        if join.instance and job.instance and join.instance != job.instance and join.rank:
            raise StaleInstance(f"{who} on {join.host} belongs to an earlier or later instance of the job")
        if join.run != job.run:
            has_ended = 0 in job.ranks and not job.is_present(join.rank)
            if job.is_present(0) or (join.rank and not has_ended):
                there = next(peer for peer in job.peers() if job.is_present(peer.rank))
                raise JobBusy(f"job {title!r} is live: {_two_runs(there.rank, there.host, join)}")
            return True
        if known is not None and known.nonce == join.nonce:
            return False
        if join.rank == 0:
            if job.is_present(0):
                raise JobBusy(
                    f"job {title!r} is live: its rank 0 runs on {job.ranks[0].host}; "
                    f"choose another job name or wait until it ends"
                )
            return bool(job.instance) and job.instance != join.instance
        if known is None:
            return False
        if job.is_present(join.rank):
            raise RankTaken(
                f"{who} is already taken by a live process on {known.host}; {join.host} claims it too: "
                f"give each job its own name, or stop the other process"
            )
        if job.is_present(0):
            raise JobBusy(f"job {title!r} is live, and {who} was a different process, on {known.host}")
        return 0 in job.ranks

    def _grant(self, join: Join, old: Job | None = None) -> int:
        """Return the credit of a new job, which replaces the old one if given.

        Raises:
            ReductionError: no new job may be created.
        """
        if self.is_draining:
            raise ReducerDraining(f"this reducer is stopping and takes no new job {join.job!r}")
        account = account_of(join.job, join.admitted_by)
        freed, left = (0, 0) if old is None else (old.reserved_bytes, old.world_size)
        if join.world_size > (seats := self.seats.free(account) + left):
            raise ResourceExhausted(
                f"job {join.job!r} needs {join.world_size} streams; {self.seats.taken - left} of {self.seats.limit} "
                f"are reserved for ranks, and it may have {seats} more ({_OF_SHARES}): use other reducers, or wait for "
                f"other jobs to end"
            )
        reserved = self.memory_reserved_bytes - freed
        free = self.memory.free(account) + freed
        credit = grant(join.credit_bytes, join.world_size, free)
        if not credit:
            least = min(join.credit_bytes, CREDIT_BYTES_LEAST)
            raise ResourceExhausted(
                f"job {join.job!r} needs {reservation(join.world_size, least)} bytes ({join.world_size} ranks x 2 x "
                f"{least} credit + {JOB_FIXED_BYTES}); {reserved} of {self.memory_limit_bytes} are taken, and it may "
                f"have {free} more ({_OF_SHARES}): raise --memory-limit, or wait for other jobs to end"
            )
        return credit

    def _make(self, join: Join) -> Job:
        credit_bytes = self._grant(join)
        self._job_count += 1
        job = Job(
            id=self._job_count,
            name=join.job,
            group=join.group,
            world_size=join.world_size,
            credit_bytes=credit_bytes,
            reserved_bytes=reservation(join.world_size, credit_bytes),
            incarnation=self.incarnation,
            local_size=join.local_size,
            run=join.run,
            account=account_of(join.job, join.admitted_by),
            place=self.place,
            totals=self.totals.begin(job_label(join.job, join.group)),
        )
        self.by_name[join.job, join.group] = job
        self.memory.take(job.account, job.reserved_bytes)
        self.seats.take(job.account, job.world_size)
        return job

    # ---- leaving ----

    def _on_lost(self, stream: int) -> list[Action]:
        owner = self.streams.pop(stream, None)
        if owner is None:
            return []
        job, rank = owner
        actions = job.on_lost(rank)
        return actions + self._forget_if_deserted(job)

    def _refuse(self, stream: int, error: ReductionError) -> list[Action]:
        """End one stream with an error, and also its job unless the rank will return.

        A worker reopens its stream only after DataCorrupted. Any other Abort is final for it.
        """
        owner = self.streams.get(stream)
        if owner is not None and not isinstance(error, DataCorrupted):
            job, rank = owner
            return self._fail(job, type(error)(job.blame(rank, str(error))))
        actions: list[Action] = [Send(stream, Abort(error.code, str(error))), Close(stream, error)]
        return actions + self._on_lost(stream)

    def _fail(self, job: Job, error: ReductionError) -> list[Action]:
        """End a job on all its streams. Ranks without a stream receive the error at their next Join."""
        if job.instance:
            self.failures[job.name, job.instance] = error
            if len(self.failures) > FAILURES_MAX:
                self.failures.popitem(last=False)
        self.streams = {old: owner for old, owner in self.streams.items() if owner[0] is not job}
        self._end(job, Outcome.FAILED)
        return job.fail(error)

    def _forget_if_deserted(self, job: Job) -> list[Action]:
        # Nothing is lost: each rank keeps what it may still need, and its next Join starts over.
        if not job.is_deserted:
            return []
        self._end(job, Outcome.ENDED if job.has_ended else Outcome.LOST)
        return job.discard_slots()

    def _end(self, job: Job, outcome: Outcome) -> None:
        job.outcome = outcome
        self.totals.end(job.totals, outcome.name.lower())
        del self.by_name[job.name, job.group]
        self.memory.take(job.account, -job.reserved_bytes)
        self.seats.take(job.account, -job.world_size)


def _ended_by(job: Job, join: Join) -> ReductionError:
    """Return the error for the ranks of a job that this Join starts over."""
    if join.run != job.run and 0 not in job.ranks:
        first = job.peers()[0]
        return JobBusy(f"job {job.title!r} is taken: {_two_runs(first.rank, first.host, join)}")
    return StaleInstance(f"job {join.job!r} was restarted by rank {join.rank} on {join.host}")


def _two_runs(rank: int, host: str, join: Join) -> str:
    return (
        f"rank {rank} on {host} and rank {join.rank} on {join.host} belong to different runs; choose another job name, "
        f"or wait until the other run ends; ranks without a process group need the same run="
    )
