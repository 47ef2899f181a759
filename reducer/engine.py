"""The engine of one reducer process, which carries out the core's actions on the event loop's thread.

A transport opens a stream for each connection and passes frames to it. The engine passes events to
`Jobs`, does the arithmetic, and passes frames to the streams' sinks. It makes no decisions, and does
not know the wire format.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from reduction import __version__
from reduction.codecs import CODECS, Codec
from reduction.codecs.average import scale
from reduction.codecs.interface import Array
from reduction.errors import DataCorrupted, MalformedFrame, ReductionError, ResourceExhausted
from reduction.limits import LOBBY_BYTES_MAX
from reduction.log_limit import Repeats
from reduction.model import (
    NOWHERE,
    PROTOCOL_VERSION,
    Collective,
    JobStatus,
    Join,
    Peer,
    Place,
    Planes,
    Push,
    ReduceOp,
    ReducerStatus,
    Result,
    Start,
    Waiting,
    Welcome,
    WorkerFrame,
)
from reduction.pacing import Sent
from reduction.shortage import shortage
from reduction.transports.interface import Sink
from reduction.wire import checksum

from reducer.core.actions import Action, Close, Discard, Fold, Publish, Send, SlotKey, Throttle, Warn
from reducer.core.events import Drain, Ended, Lost, Received, ReducerEvent, Rejected, Tick
from reducer.core.fair_shares import NOBODY, Account
from reducer.core.histogram import Histogram
from reducer.core.job import Job
from reducer.core.jobs import Jobs
from reducer.core.lobby import Lobby
from reducer.core.totals import JobLabel, JobTotals, Traffic
from reducer.journal import Journal
from reducer.recent import shown
from reducer.resources import usage
from reducer.resources.buffers import BufferPool, is_leased
from reducer.resources.mapped import Mapped
from reducer.spans import Spans

log = logging.getLogger(__name__)

#: Interval of the core's ticks, in seconds.
TICK_S = 0.04
#: One chunk in this many has its time measured, because reading the clock costs as much as all other
#: counting. It is a prime, so that it is not always the same chunk of a collective.
MEASURED_CHUNKS = 13
#: The metrics' names of a stream's data planes.
ON_GRPC, ON_TCP, ON_SHARED_MEMORY = "grpc", "tcp", "shared_memory"
#: Events that are void once their stream is over. A tuple, because `Received | Rejected` in the hot
#: path would create a union for every frame.
_OF_STREAMS = (Received, Rejected)
#: Frames that are logged.
_LOGGED = (Welcome, Start)


class Owner(NamedTuple):
    """The owner of a stream."""

    label: JobLabel
    #: The name of the worker's host.
    host: str
    totals: JobTotals
    account: Account = NOBODY


class Paced(Protocol):
    """A connection that the kernel can pace; see `reduction.pacing`."""

    @property
    def sent(self) -> Sent | None:
        """Totals of the sent data, where they are known."""

    def pace(self, bytes_per_s: int) -> None:
        """Limit sending to this many bytes per second from now on."""


class Engine:
    """In-process implementation of `ReducerEndpoint`."""

    def __init__(
        self,
        *,
        memory_limit_bytes: int,
        place: Place = NOWHERE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        incarnation = secrets.token_bytes(16)
        self.jobs = Jobs(incarnation=incarnation, memory_limit_bytes=memory_limit_bytes, place=place)
        #: The lobby, to which the transport passes its calls.
        self.lobby = Lobby(min(LOBBY_BYTES_MAX, memory_limit_bytes // 4))
        #: Chunks published for all jobs since the start.
        self.chunks = 0
        self.errors: Counter[str] = Counter()
        #: Delays of `tick` calls.
        self.loop_lag = Histogram()
        #: Whether a rank of some job has been welcomed since the start.
        self.has_served = False
        #: The workers' memory that this process maps.
        self.mapped = Mapped()
        #: Transports receive payloads into buffers of this pool.
        self.pool = BufferPool()
        self._clock = clock
        self._started_at = clock()
        self._ticked_at: float | None = None
        self._sinks: dict[int, Sink] = {}
        #: The data plane of each stream that has joined.
        self._plane: dict[int, str] = {}
        #: The data connections that can be paced, by stream.
        self._paced: dict[int, Paced] = {}
        #: Byte counters of each stream that has joined.
        self._traffic: dict[int, Traffic] = {}
        self._accumulators: dict[SlotKey, Array] = {}
        #: First contributions that have to be copied. They wait for the second contributions, so that both
        #: are read only once.
        self._firsts: dict[SlotKey, tuple[memoryview, int]] = {}
        self._events: deque[ReducerEvent] = deque()
        self._stream_count = 0
        #: Limits the rate of log lines that a peer can trigger.
        self.lines = Repeats(clock)
        self._journal = Journal(clock, self.lines)
        #: Records of `reducer serve --trace`, None without that option.
        self.spans: Spans | None = None

    def open(self, sink: Sink, peer: str = "") -> EngineStream:
        """Open a stream. Its sink is called from within the `send` of this or other streams.

        Args:
            sink: receives the engine's frames.
            peer: the stream's origin in gRPC's notation.
        """
        self._stream_count += 1
        self._sinks[self._stream_count] = sink
        self._journal.on_open(self._stream_count, peer)
        return EngineStream(self, self._stream_count)

    def tick(self) -> None:
        """Let time pass. Call this every TICK_S."""
        now = self._clock()
        if self._ticked_at is not None:
            self.loop_lag.add(max(0.0, now - self._ticked_at - TICK_S))
        self._ticked_at = now
        asked = ((stream, self._paced.get(stream)) for stream in self.jobs.sending())
        answers = ((stream, None if path is None else path.sent) for stream, path in asked)
        totals = {stream: sent for stream, sent in answers if sent is not None}
        for key in list(self.jobs.by_name):  # an event each, so that a bug costs one job, not all
            self._handle(Tick(totals, key))
        self.lines.expire()
        self.lobby.forget(self._clock())
        if not self.jobs.by_name:
            self.pool.clear()

    def drain(self) -> None:
        """Accept no new jobs, and ask the present ones to leave."""
        self._journal.on_drain()
        self._handle(Drain())

    def close(self) -> None:
        """Write the outstanding log lines when the process stops."""
        self.lines.close()

    @property
    def is_needed(self) -> bool:
        """Whether a job has this reducer in its current configuration."""
        return any(job.needs_this_reducer for job in self.jobs.by_name.values())

    def status(self) -> ReducerStatus:
        """Return the current status of this reducer."""
        now = self._clock()
        statuses = tuple(
            JobStatus(
                job=job.name,
                world_size=job.world_size,
                peers=_shown(job.peers()),
                epoch=job.epoch,
                started=job.is_started,
                minimum=job.minimum,
                open_slots=len(job.slots),
                reserved_bytes=job.reserved_bytes,
                received_bytes=job.received_bytes,
                sent_bytes=job.sent_bytes,
                chunk_bytes=job.configuration.chunk_bytes if job.configuration else 0,
                credit_bytes=job.credit_bytes,
                under_way_bytes=max((view.outstanding for view in job.ranks.values()), default=0),
                last=job.waits.last(),
                waits=job.waits.times(),
                group=job.group,
                planes=self._planes([view.stream for view in job.ranks.values() if view.stream is not None]),
                waiting=_waiting_of(job, now),
            )
            for job in self.jobs.by_name.values()
        )
        return ReducerStatus(
            version=__version__,
            incarnation=self.jobs.incarnation,
            uptime_seconds=now - self._started_at,
            draining=self.jobs.is_draining,
            memory_reserved_bytes=self.jobs.memory_reserved_bytes,
            memory_limit_bytes=self.jobs.memory_limit_bytes,
            jobs=statuses,
            cpu_seconds=usage.cpu_seconds(),
            resident_bytes=usage.resident_bytes(),
            events=self._journal.events,
            ended=self._journal.ended,
        )

    def _planes(self, streams: Collection[int]) -> Planes:
        count = Counter(self._plane.get(stream, ON_GRPC) for stream in streams)
        return Planes(grpc=count[ON_GRPC], tcp=count[ON_TCP], shared=count[ON_SHARED_MEMORY])

    # ---- for EngineStream ----

    def receive(self, stream: int, frame: WorkerFrame) -> None:
        """Handle a frame of a stream. Frames of an ended stream are dropped."""
        if stream not in self._sinks:
            return
        match frame:
            case Push(payload=payload):
                if not self._is_sound(stream, frame):
                    return
                if (traffic := self._traffic.get(stream)) is not None:
                    traffic.received_bytes += payload.nbytes
                if self.spans is not None and (owner := self.jobs.streams.get(stream)) is not None:
                    job, rank = owner
                    self.spans.on_push(job.id, job.name, job.world_size, rank, frame.seq)
            # A Join of another version has not been checked, so the journal must not keep it.
            case Join() if frame.protocol == PROTOCOL_VERSION:
                self._journal.introduce(stream, frame)
        self._handle(Received(stream, frame))

    def _is_sound(self, stream: int, push: Push) -> bool:
        try:
            if self.jobs.has_checksums(stream):
                checksum.check(push)
            CODECS[push.collective.dtype].check(push.payload)
        except (DataCorrupted, MalformedFrame) as error:
            self.reject(stream, error)
            return False
        return True

    def reject(self, stream: int, error: ReductionError) -> None:
        """End a stream whose peer broke a rule that the transport checks."""
        # The stream keeps the error. A traceback would keep the stream and the faulty frame alive in a
        # cycle.
        error.__traceback__ = error.__context__ = None
        if stream in self._sinks:
            self._handle(Rejected(stream, error))

    def note_refused_call(self, peer: str, error: ReductionError) -> None:
        """Count and log a call that the transport refused before it had a stream."""
        self.errors[type(error).__name__] += 1
        self._journal.on_refused_call(peer, error)

    def label(self, stream: int) -> str:
        """Return the job and the rank of an open stream, for the log."""
        return self._journal.label(stream)

    def move(self, stream: int, plane: str) -> Owner | None:
        """Count the bytes of a stream on another data plane, and return its owner, or None if it is over."""
        owner = self.jobs.streams.get(stream)
        if owner is None or stream not in self._sinks:
            return None
        job, rank = owner
        self._plane[stream] = plane
        self._traffic[stream] = job.totals.on_plane(plane)
        return Owner(job.label, job.ranks[rank].host, job.totals, job.account)

    def pace(self, stream: int, connection: Paced | None) -> None:
        """Pace the stream's data on this connection from now on, or on none."""
        self._paced.pop(stream, None)
        if connection is not None and stream in self._sinks:
            self._paced[stream] = connection

    def lose(self, stream: int, reason: str) -> Callable[[], None] | None:
        """Record that a stream is over although the reducer did not end it.

        Returns:
            A function to call if the rank's process turns out to have ended; None if there is no such rank.
        """
        sink, owner = self._forget(stream), self.jobs.streams.get(stream)
        if sink is None:
            return None
        self._journal.on_lost(stream, reason)
        self._handle(Lost(stream))
        sink.on_closed(None)
        if owner is None:
            return None
        job, rank = owner
        return partial(self._handle, Ended(job.name, job.group, rank, job.ranks[rank].nonce))

    # ---- performing ----

    def _handle(self, event: ReducerEvent) -> None:
        self._events.append(event)
        if len(self._events) > 1:
            return  # called from within a sink, so the loop below handles it after the current event
        while self._events:
            event = self._events[0]
            try:
                if not isinstance(event, _OF_STREAMS) or event.stream in self._sinks:
                    now = self._clock()
                    for action in self.jobs.handle(event, now):
                        self._perform(action, now)
            except Exception as error:  # a bug or a lack of memory must cost one job, not all
                self._contain(event, error)
            if self._journal.has_news(len(self.jobs.by_name)):
                self._journal.settle(self.jobs.by_name.values())
            self._events.popleft()

    def _contain(self, event: ReducerEvent, error: Exception) -> None:
        """End the stream whose event failed. Its rank then fails the job everywhere."""
        if reason := shortage(error):
            failure: ReductionError = ResourceExhausted(f"the reducer has run out of memory: {reason}")
        else:
            kind = type(event).__name__
            self.lines.log(log, logging.ERROR, kind, "", "event failed event=%s", kind, error=error)
            failure = ReductionError("internal error of the reducer; see its log")
        if isinstance(event, Received):
            self._events.append(Rejected(event.stream, failure))

    def _forget(self, stream: int) -> Sink | None:
        self._plane.pop(stream, None)
        self._paced.pop(stream, None)
        self._traffic.pop(stream, None)
        return self._sinks.pop(stream, None)

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Fold(slot, collective, payloads, layout_bytes):
                self._fold(slot, collective, payloads, layout_bytes)
            case Publish():
                self._publish(action, now)
            case Send(stream, frame):
                if isinstance(frame, _LOGGED):
                    self._note(stream, frame)
                if (sink := self._sinks.get(stream)) is not None:
                    sink.on_frame(frame)
            case Close(stream, error):
                if error is not None:
                    self.errors[type(error).__name__] += 1
                self._journal.on_close(stream, error)
                if (sink := self._forget(stream)) is not None:
                    sink.on_closed(error)
            case Discard(slot):
                self._accumulators.pop(slot, None)
                self._firsts.pop(slot, None)
            case Throttle(stream, bytes_per_s):
                if (connection := self._paced.get(stream)) is not None:
                    connection.pace(bytes_per_s)
            case Warn(text):
                self.lines.log(log, logging.WARNING, "waits", "", "%s", text)

    def _note(self, stream: int, frame: Welcome | Start) -> None:
        """Log that a rank has joined, or that all ranks have."""
        # Log the end of a previous instance of the job first.
        self._journal.settle(self.jobs.by_name.values())
        owner = self.jobs.streams.get(stream)
        if owner is not None and isinstance(frame, Welcome):
            self.has_served = True
            self.move(stream, ON_GRPC)
            self._journal.on_welcome(stream, owner[0])
        elif owner is not None:
            self._journal.on_start(owner[0])

    def _fold(
        self, slot: SlotKey, collective: Collective, payloads: tuple[memoryview, ...], layout_bytes: int
    ) -> None:
        codec = CODECS[collective.dtype]
        accumulator = self._accumulators.get(slot)
        if accumulator is None:
            if slot in self._firsts:
                payloads = self._firsts.pop(slot)[0], *payloads
            elif len(payloads) == 1 and not _becomes_sum(codec, payloads[0]):
                self._firsts[slot] = payloads[0], layout_bytes
                return
            accumulator, payloads = self._begin(slot, codec, collective.op, layout_bytes, payloads)
        for payload in payloads:
            codec.add(accumulator, payload, collective.op)

    def _begin(
        self, slot: SlotKey, codec: Codec, op: ReduceOp, layout_bytes: int, payloads: tuple[memoryview, ...]
    ) -> tuple[Array, tuple[memoryview, ...]]:
        """Create a chunk's accumulator, and return it with the payloads that it does not include yet."""
        first = payloads[0]
        if _becomes_sum(codec, first):
            accumulator, left = np.frombuffer(first, codec.accumulation), payloads[1:]
        else:
            nbytes = codec.elements(layout_bytes) * codec.accumulation.itemsize
            accumulator = np.frombuffer(self.pool.take(nbytes), codec.accumulation)
            if len(payloads) > 1:
                codec.start_with_two(accumulator, first, payloads[1], op)
            else:
                codec.start(accumulator, first)
            left = payloads[2:]
        self._accumulators[slot] = accumulator
        return accumulator, left

    def _publish(self, action: Publish, now: float) -> None:
        collective = action.collective
        codec = CODECS[collective.dtype]
        if action.slot in self._firsts:  # the job has one rank
            first, layout_bytes = self._firsts.pop(action.slot)
            self._begin(action.slot, codec, collective.op, layout_bytes, (first,))
        accumulator = self._accumulators.pop(action.slot)
        scale(accumulator, collective.op, action.divisor)
        nbytes = collective.dtype.format.result_bytes(accumulator.size * collective.dtype.itemsize)
        payload = codec.finish(accumulator, None if codec.is_plain else self.pool.take(nbytes))
        fields = action.epoch, action.slot.seq, action.slot.chunk, action.minimum, payload
        result = Result(*fields, checksum.of_result(*fields) if action.has_checksum else None)
        for stream in action.streams:
            if (sink := self._sinks.get(stream)) is not None:
                self._traffic[stream].sent_bytes += payload.nbytes
                self.jobs.note_sent(stream, payload.nbytes)
                sink.on_frame(result)
        if not self.chunks % MEASURED_CHUNKS and action.streams:
            self.jobs.note_reduced(action.streams[0], self._clock() - now)
        self.chunks += 1
        if self.spans is not None:
            self.spans.on_publish(action.slot.job, action.slot.seq, action.last_rank, action.opened_at)


class EngineStream:
    """One rank's stream into the engine: a `ReducerStream`, and `reject` for transports."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = engine
        self._number = number

    def send(self, frame: WorkerFrame) -> None:
        """Handle one frame; see `ReducerStream.send`."""
        self._engine.receive(self._number, frame)

    def reject(self, error: ReductionError) -> None:
        """End the stream because of an error of the peer below the level of frames."""
        if isinstance(error, MalformedFrame) and self._engine.jobs.has_checksums(self._number):
            # A worker never sends such bytes, so they were corrupted in transit.
            error = DataCorrupted(f"received bytes that are not a frame: {error}")
        self._engine.reject(self._number, error)

    def move(self, plane: str) -> Owner | None:
        """Set the data plane of the stream's frames from now on; see `Engine.move`."""
        return self._engine.move(self._number, plane)

    def pace(self, connection: Paced | None) -> None:
        """Set the connection for results from now on; None if it cannot be paced."""
        self._engine.pace(self._number, connection)

    def close(self, reason: str = "its call ended") -> Callable[[], None] | None:
        """End the stream; see `ReducerStream.close` and `Engine.lose`. `reason` goes into the log."""
        return self._engine.lose(self._number, reason)

    @property
    def job(self) -> str:
        """The name of the job that is charged for a joined stream, without a rail's suffix."""
        job, _ = self._engine.jobs.streams[self._number]
        return job.account.job

    @property
    def label(self) -> str:
        """The job and the rank of an open stream, for the log."""
        return self._engine.label(self._number)


def _shown(peers: Iterable[Peer]) -> tuple[Peer, ...]:
    """Return ranks in public form, with a digest in place of the nonce, which would allow impersonating the rank."""
    return tuple(replace(peer, nonce=shown(peer.nonce)) for peer in peers)


def _waiting_of(job: Job, now: float) -> Waiting | None:
    waiting = job.waiting(now)
    return waiting and replace(waiting, missing=_shown(waiting.missing))


def _becomes_sum(codec: Codec, first: memoryview) -> bool:
    """Return whether a first contribution was received into our own memory that can hold the sum."""
    return codec.is_plain and is_leased(first)
