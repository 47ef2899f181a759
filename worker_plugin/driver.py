"""The I/O loop's part in a communicator: it performs the core's actions and hands it events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from reduction.client.access import Access
from reduction.discovery.resolve import Sources
from reduction.errors import (
    DataCorrupted,
    LocalProtocolError,
    MalformedFrame,
    ReductionError,
    ResourceExhausted,
)
from reduction.log_limit import LINES
from reduction.model import Push, ReducerFrame, Result
from reduction.pacing import Sent
from reduction.shortage import failure_of
from reduction.transports.shared import OwnMemory
from reduction.wire import checksum

from worker_plugin.core.actions import (
    Action,
    Began,
    Closed,
    Deliver,
    Divert,
    Embed,
    Fail,
    Log,
    LookUp,
    Open,
    PushChunk,
    Release,
    Send,
    Shut,
    Store,
    Throttle,
)
from worker_plugin.core.events import Broke, Event, FellBack, Found, Issued, Received, StreamLost, Tick
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore
from worker_plugin.discovery.addresses import Finder
from worker_plugin.process.io_loop import io_loop
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.timeline.recorder import Recorder
from worker_plugin.transports.links import Links

log = logging.getLogger(__name__)

#: Number of ticks between reads of the kernel's retransmit counters: about one second.
RETRANSMITS_TICKS = 25
#: Interval of the core's ticks, in seconds. At 25 ms an idle rank took 1.5 % of a core.
TICK_S = 0.04
#: Maximum burst of log lines per level from one communicator.
LINES_BURST = 16


@dataclass(frozen=True, slots=True)
class Start:
    """What a driver needs to begin once the ranks have met."""

    identity: Identity
    addresses: tuple[str, ...]
    sources: Sources
    transport: str
    #: Credentials for reducers, and by address the credentials for particular reducers instead.
    access: Access
    private: Mapping[str, Access]


class Copies(Protocol):
    """Copies between tensors and the memory of collectives; see `Staging`. Called on the loop's thread."""

    def begin(self, transfer: Transfer) -> None:
        """Prepare a transfer whose tensor is on the CPU, so that it can be pushed."""

    def prepare_result(self, transfer: Transfer) -> None:
        """Ensure that the transfer has memory for the result."""

    def deliver(self, transfer: Transfer) -> None:
        """Copy the completed result to the tensor, and complete the future."""

    def release(self, transfer: Transfer) -> None:
        """Reclaim the contribution's memory."""

    def fail(self, transfer: Transfer, error: Exception) -> None:
        """Complete the future with an error, unless it is complete."""


class DriverOwner(Protocol):
    """The communicator that a `Driver` belongs to. Called on the loop's thread."""

    @property
    def final(self) -> ReductionError:
        """The error of collectives submitted after the end."""

    def on_started(self, reducers: tuple[str, ...], planes: Sequence[str]) -> None:
        """Record that all ranks and these reducers have met, and over which planes."""

    def on_failed(self, error: ReductionError) -> ReductionError:
        """Record the error that ended the communicator, and return the one for its futures."""

    def fall_back(self) -> None:
        """Look for a reducer with the other ranks, without blocking; `FellBack` or `NoFallback` follows."""


class Driver:
    """Owns the core, the streams and the table of collectives of one communicator. For the loop's thread only.

    Args:
        owner: notified of the start and of failures, until `release`.
        staging: copies between tensors and the memory of collectives.
        recorder: records the times of events.
        memory: where contributions are stored, if reducers on this host may read them there.
    """

    def __init__(
        self,
        owner: DriverOwner,
        staging: Copies,
        recorder: Recorder,
        memory: OwnMemory | None = None,
    ) -> None:
        self._owner = owner
        self._staging = staging
        self._recorder = recorder
        self.links = Links("auto", memory)
        self._core: RankCore | None = None
        #: Events that arrived before the core existed.
        self._early: list[Event] = []
        #: Finds other reducers while the job runs.
        self._finder = Finder({})
        #: The collectives that have not been released, by number.
        self._transfers: dict[int, Transfer] = {}
        #: The error of collectives submitted after a failure.
        self._failure: ReductionError | None = None
        self._ticks = 0
        #: The timer of the next tick.
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the communicator has ended."""
        return self._over.is_set()

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`."""
        return self.links.addresses, self.links.descriptors

    async def run(self, start: Start) -> None:
        """Drive the core until the communicator and all of its streams have ended."""
        self.links.transport = start.transport
        self.links.access = start.access
        self.links.private.update(start.private)
        looked_up = set(chain.from_iterable(start.sources.values()))
        self._core = RankCore(start.identity, start.addresses, looked_up)
        self._finder = Finder(start.sources)
        early, self._early = self._early, []
        for event in early:
            self.handle(event)
        self._tick()
        await self._over.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.links.close()

    def release(self) -> None:
        """Free the contributions that other ranks might still have needed. Nothing is issued after this."""
        self._transfers.clear()
        del self._owner  # it refers to this object: a cycle

    def take(self, transfer: Transfer) -> None:
        """Have a collective issued after those taken before. For any thread."""
        io_loop().call_soon_threadsafe(self.issue, transfer)

    def issue(self, transfer: Transfer) -> None:
        """Issue the next collective: hand it to the core, or complete it with the error."""
        transfer.progress.taken = time.monotonic()
        failure: ReductionError | None = None
        if transfer.ready is None:
            try:
                self._staging.begin(transfer)
            except Exception as error:  # possibly out of memory
                failure = self._failure_of(f"collective {transfer.seq} could not be copied", error)
        if self._over.is_set() or self._failure is not None:
            self._staging.fail(transfer, self._failure or self._owner.final)
            return
        self._transfers[transfer.seq] = transfer
        if transfer.contribution is None:
            text = f"collective {transfer.seq} could not be copied; see the log"
            self.handle(Broke(failure or LocalProtocolError(text)))
        else:
            self.handle(Issued(transfer.collective))

    def handle(self, event: Event) -> None:
        """Hand an event to the core, and perform the actions that follow."""
        if self._core is None:
            if self.is_over:  # the ranks did not meet
                return
            self._early.append(event)
            if isinstance(
                event, Broke
            ):  # this rank need not wait for the others; they are told when all have met
                self._fail(event.error)
            return
        try:
            for action in self._core.handle(event, time.monotonic()):
                self._perform(action)
        except MalformedFrame as error:  # a result that cannot be decoded
            self.handle(Broke(error))
        except Exception as error:  # a bug of ours, or out of memory: fail everywhere, with a cause
            failure = self._failure_of(f"{type(event).__name__} could not be handled", error)
            if isinstance(event, Broke):
                self.end(event.error)
            else:
                self.handle(Broke(failure))

    def fell_back(self, address: str, access: Access) -> None:
        """Continue at a reducer that rank 0 has started, after `DriverOwner.fall_back`."""
        self.links.private[address] = access
        self.handle(FellBack(address))

    def receive(self, link: int, frame: ReducerFrame) -> None:
        """Hand a frame to the core, unless its checksum shows that it was damaged in transit."""
        if isinstance(frame, Result) and self._has_checksums():
            try:
                checksum.check(frame)
            except DataCorrupted as error:  # the stream is given up; the next epoch sends the result again
                self.links.forget(link)
                self.links.shut(link)
                self.lose(link, error)
                return
        if isinstance(frame, Result):
            self._recorder.totals.bytes_pulled += frame.payload.nbytes
            if (transfer := self._transfers.get(frame.seq)) is not None:
                transfer.progress.on_result(link)
        self.handle(Received(link, frame))

    def lose(self, link: int, error: ReductionError | None) -> None:
        """Tell the core that a stream has ended."""
        if isinstance(error, MalformedFrame) and self._has_checksums():
            # No reducer sends such bytes.
            error = DataCorrupted(f"received bytes that are not a frame: {error}")
        self.handle(StreamLost(link, error))
        # This is the rank's own error, because a reducer reports its own with an Abort. It follows the loss because
        # that stream cannot tell the other ranks.
        if isinstance(error, ResourceExhausted):
            self.handle(Broke(error))

    def _perform(self, action: Action) -> None:
        match action:
            case PushChunk():
                self._push(action)
            case Store(seq, start, stop, payload):
                self._transfers[seq].store(start, stop, payload)
            case Divert(link):
                self.links.divert(link)
            case Deliver(seq):
                transfer = self._transfers[seq]
                transfer.progress.whole = time.monotonic()
                self._staging.deliver(transfer)
            case Release(seq):
                self._staging.release(self._transfers.pop(seq))
            case Send(link, frame):
                self.links.send(link, frame)
            case Open(link, address, join):
                self._recorder.on_open(link, address)
                self.links.open(link, address, join, self)
            case Shut(link):
                self.links.shut(link)
            case Throttle(link, bytes_per_s):
                self.links.pace(link, bytes_per_s)
            case Fail(error, is_over):
                self._fail(error)
                if is_over:
                    self._over.set()
            case Embed():
                self._owner.fall_back()
            case LookUp(everything):
                self.links.run(self._look_up(everything))
            case Began(reducers):
                self._count_epochs()
                self._owner.on_started(reducers, self.links.planes)
            case Closed():
                self._over.set()
            case Log(level, text):
                self._recorder.note(text)
                job, rank = self._names
                what = "job %s rank %d: %s"
                LINES.log(log, level, "communicator", job, what, job, rank, text, burst=LINES_BURST)

    def _tick(self) -> None:
        if not self._over.is_set():
            # Schedule the next tick first: time must go on even if handling this one raises.
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
            is_asked = self._core is not None and self._core.wants_sent
            sent: Mapping[int, Sent] = {}
            if is_asked or self._ticks % RETRANSMITS_TICKS == 0:
                sent = self.links.sent()
                lost = sum(one.lost for one in sent.values())
                self._recorder.totals.retransmits = max(self._recorder.totals.retransmits, lost)
            self._ticks += 1
            self.handle(Tick(sent))
            LINES.expire()
            self._count_epochs()

    def _count_epochs(self) -> None:
        if self._core is not None:
            totals, epochs = self._recorder.totals, self._core.epochs
            totals.epochs, totals.resharded, totals.reducers = epochs.number, epochs.resharded, epochs.size

    async def _look_up(self, everything: bool) -> None:
        """Give the core the addresses that the job's sources currently name."""
        found = await self._finder.find(everything=everything)
        if found is not None:
            self.handle(Found(found))

    def _push(self, action: PushChunk) -> None:
        transfer = self._transfers[action.seq]
        payload = transfer.payload(action.start, action.stop)
        crc = None
        if self._has_checksums():
            what = action.epoch, action.seq, action.chunk, action.held, action.collective
            crc = checksum.of_push(*what, payload)
        push = Push(action.epoch, action.seq, action.chunk, action.collective, action.held, payload, crc)
        destination = None
        if action.is_awaited:
            self._staging.prepare_result(transfer)
            destination = transfer.destination(action.start, action.stop)
        self._recorder.totals.bytes_pushed += payload.nbytes
        self.links.push(action.link, push, destination)
        transfer.progress.on_push(action.link, action.stop - action.start)

    def _failure_of(self, what: str, error: Exception) -> ReductionError:
        """Return the error that ends the communicator; log the traceback of a bug."""
        failure = failure_of(what, error)
        if isinstance(failure, LocalProtocolError):
            log.error("job %s rank %d: %s", *self._names, what, exc_info=error)
        return failure

    def end(self, error: ReductionError) -> None:
        """Fail without telling the other ranks, because there is no core to do so."""
        self._fail(error)
        self._over.set()

    def _fail(self, error: ReductionError) -> None:
        """Complete every collective without a result with the error. Every later one gets it as well."""
        self._failure = self._owner.on_failed(error)
        self._recorder.totals.stop()
        for transfer in self._transfers.values():
            self._staging.fail(transfer, self._failure)
        self._transfers.clear()

    def _has_checksums(self) -> bool:
        """Return whether pushes and results have checksums. Streams exist only while there is a core."""
        assert self._core is not None
        return self._core.has_checksums

    @property
    def _names(self) -> tuple[str, int]:
        """Job and rank, for log lines."""
        return ("?", -1) if self._core is None else (self._core.identity.job, self._core.identity.rank)
