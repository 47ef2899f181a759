"""A rank's communicator outside the core: performs what the core decides, on the process's I/O loop.

Three threads meet here. The user's thread submits; the staging thread copies; the loop thread owns
the core, the streams and the table of collectives. They hand over through `call_soon_threadsafe`
and the staging queue, and share nothing but `_final` and `_ended`, under a lock. A fourth looks for
the reducers, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable

from reduction.errors import (
    ClosedError,
    DataCorrupted,
    JobBusy,
    LocalProtocolError,
    MalformedFrame,
    ReductionError,
)
from reduction.model import Collective, Push, ReducerFrame, Result
from reduction.rails import job_of
from reduction.wire import checksum

from worker_plugin.communicator import CLOSED, Request
from worker_plugin.config import PluginConfig
from worker_plugin.core import pace
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
)
from worker_plugin.core.communicator import Communicator, Identity
from worker_plugin.core.events import (
    Broke,
    Close,
    Connect,
    Event,
    FellBack,
    Found,
    Issued,
    Leave,
    Lost,
    NoFallback,
    Received,
    Tick,
)
from worker_plugin.discovery import announcement
from worker_plugin.discovery.addresses import look_up
from worker_plugin.discovery.meeting_point import MeetingPoint
from worker_plugin.discovery.milestone import Milestone
from worker_plugin.discovery.rendezvous import Rendezvous
from worker_plugin.process import fork, log_setup
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.process.io_loop import io_loop
from worker_plugin.rank_group import RankGroup
from worker_plugin.tensors import gpu
from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import encoding_of
from worker_plugin.tensors.futures import Future, fail, make_future, without_frames
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.transports.links import Links

log = logging.getLogger(__name__)

#: How often time passes for the core, in seconds. At 25 ms an idle rank took 1.5 % of a core.
TICK_S = 0.04
#: How long close() waits beside close_timeout_s: for streams, the embedded reducer and the last
#: copies, in seconds.
CLOSE_EXTRA_S = 8.0


class Client:
    """A rank's communicator. Made by the first collective, in the process that uses it.

    Args:
        config: settings; its rank and world size do not count.
        ranks: the ranks that reduce together, and this rank's number among them.
        rendezvous: asked once, on a thread of its own.
        local_size: of how many processes each contribution is the sum.
        host: how other ranks' errors call this one.
        announced_ranks: how rank 0 calls all ranks when it announces this communicator. Empty if
            another communicator is announced instead.
    """

    def __init__(
        self,
        config: PluginConfig,
        ranks: RankGroup,
        rendezvous: Rendezvous,
        *,
        local_size: int = 1,
        host: str | None = None,
        announced_ranks: str | None = None,
    ) -> None:
        self.error: ReductionError | None = None
        if announced_ranks is None:
            announced_ranks = announcement.ranks_text(ranks.size, label=ranks.label)
        self._announced_ranks = announced_ranks
        self._started = Milestone()
        self._config = config
        self._rank = ranks.rank
        self._world_size = ranks.size
        self._group = ranks.label
        self._rendezvous = rendezvous
        self._local_size = local_size
        if host is None:
            host = socket.gethostname() + (f", global rank {ranks.global_rank}" if ranks.label else "")
        self._host = host
        self._lock = threading.RLock()  # a signal handler may close
        #: The error that later collectives raise; set by a failure or the end.
        self._final: ReductionError | None = None
        #: Whether the loop takes no collectives any more. Written under the lock.
        self._ended = False
        #: The error that collectives get which come to the loop after a failure.
        self._failure: ReductionError | None = None
        self._issued = 0
        self._transfers: dict[int, Transfer] = {}
        self._core: Communicator | None = None
        self._early: list[Event] = []
        self._links = Links(config.transport)
        #: Where the job meets; after a fallback there is a second one.
        self._meeting_points: list[MeetingPoint] = []
        self._loop = io_loop()
        #: The timer of the next tick.
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._staging = Staging(ArenaPool(), self._on_arriving)
        fork.register(self)
        _clients.add(self)
        threading.Thread(target=self._discover, name="reduction-discovery", daemon=True).start()

    # ---- the user's thread ----

    def submit(self, request: Request) -> Future:
        """Issue the next collective; see `Communicator.submit`."""
        tensor = request.tensor
        future = make_future(tensor)
        ready = gpu.written(tensor)
        dtype, numel, encoding = encoding_of(
            tensor.detach(), request.dtype, request.op, self._config.wire, request.slices
        )
        collective = Collective(request.op, dtype, numel, request.fingerprint)
        with self._lock:
            if self._final is not None:
                raise self._final.with_traceback(None)  # or each raise would make it longer
            transfer = Transfer(self._issued, collective, tensor, encoding, future, ready)
            self._issued += 1
            if not self._staging.download(transfer):
                self._loop.call_soon_threadsafe(self._begin, transfer)
        return future

    @property
    def job(self) -> str | None:
        """The job's name; see `Communicator.job`."""
        return None if self._core is None else job_of(self._core.identity.job)

    def connect(self) -> None:
        """Wait for ranks and reducers; see `Communicator.connect`."""
        self._loop.call_soon_threadsafe(self.handle, Connect())
        self._started.wait()
        with self._lock:
            if self._final is not None:
                raise self._final.with_traceback(None)  # or each raise would make it longer

    def abandon(self, error: ReductionError) -> None:
        """Fail here and, through the reducers, on all other ranks; see `Communicator.abandon`."""
        with self._lock:
            self._final = self._final or error
        self._started.fail(error)
        self._loop.call_soon_threadsafe(self.handle, Broke(error))

    def begin_close(self) -> None:
        """Leave in the background; see `Communicator.begin_close`."""
        with self._lock:
            self._final = self._final or ClosedError(CLOSED)
        self._started.fail(self._final)
        self._loop.call_soon_threadsafe(self.handle, Close())

    def close(self) -> None:
        """Leave, and return when that is done; see `Communicator.close`."""
        self.begin_close()
        self._staging.join(self._config.close_timeout_s + CLOSE_EXTRA_S)

    def leave(self) -> None:
        """Leave when all that was issued is done; see `Communicator.leave`."""
        self._loop.call_soon_threadsafe(self._on_last)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`."""
        descriptors = self._links.descriptors
        for meeting_point in self._meeting_points:
            descriptors += [] if meeting_point.embedded is None else meeting_point.embedded.descriptors
        return self._links.addresses, descriptors

    # ---- the download and discovery threads ----

    def _on_arriving(self, transfer: Transfer) -> None:
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(self._begin, transfer)
                return
        fail(transfer.future, self._final or ClosedError(CLOSED))

    def _discover(self) -> None:
        """Look for job and reducers; then let the loop take over."""
        asyncio.run_coroutine_threadsafe(self._live(self._ask(self._rendezvous.agree)), self._loop)

    def _fall_back(self) -> None:
        """Have rank 0 start a reducer, because none is left; on a thread of its own."""
        self._loop.call_soon_threadsafe(self._on_fallback, self._ask(self._rendezvous.fall_back))

    def _ask(
        self, question: Callable[[PluginConfig, int, int], MeetingPoint]
    ) -> MeetingPoint | ReductionError:
        """Ask the rendezvous, which may block."""
        try:
            return question(self._config, self._rank, self._world_size)
        except ReductionError as error:
            return error
        except Exception as error:
            log.exception("discovery failed")
            return LocalProtocolError(f"discovery failed: {error!r}")

    # ---- the loop thread ----

    def _on_last(self) -> None:
        self.handle(Leave(self._issued))

    def _on_fallback(self, meeting_point: MeetingPoint | ReductionError) -> None:
        if isinstance(meeting_point, ReductionError):
            self.handle(NoFallback(meeting_point))
        elif self._over.is_set():  # nobody needs it any more
            threading.Thread(target=meeting_point.stop, name="reduction-fallback", daemon=True).start()
        else:
            self._meeting_points.append(meeting_point)
            self._links.private[meeting_point.addresses[0]] = meeting_point.access
            self.handle(FellBack(meeting_point.addresses[0]))

    async def _live(self, meeting_point: MeetingPoint | ReductionError) -> None:
        try:
            if isinstance(meeting_point, ReductionError):
                self._end(meeting_point)
                return
            self._meeting_points.append(meeting_point)
            await self._serve(meeting_point)
        except Exception as error:
            log.exception("the communicator failed")
            self._end(LocalProtocolError(f"the communicator failed: {error!r}"))
        finally:
            with self._lock:
                self._ended = True
                self._final = self._final or ClosedError(CLOSED)
            self._started.fail(self._final)
            await asyncio.sleep(0)  # takes the collectives that were handed over before `_ended` was set
            self._transfers.clear()  # contributions that other ranks might still have needed
            self._staging.finish(self._stop_embedded)

    def _stop_embedded(self) -> None:
        for meeting_point in self._meeting_points:
            meeting_point.stop()

    async def _serve(self, meeting_point: MeetingPoint) -> None:
        config, wire = self._config, self._config.wire
        dtype = None if wire is None else wire.dtype
        self._links.access = meeting_point.access
        if meeting_point.access.tls is not None and self._links.transport == "auto":
            self._links.transport = "grpc"
            text = "with TLS everything goes over gRPC: the TCP data plane, which costs less CPU, is not encrypted"
            log.warning("job %s rank %d: %s", meeting_point.job, self._rank, text)
        aim = pace.GRPC if self._links.transport == "grpc" else pace.TCP
        identity = Identity(
            job=meeting_point.job,
            group=self._group,
            instance=secrets.token_bytes(16) if self._rank == 0 else b"",
            nonce=secrets.token_bytes(16),
            host=self._host,
            rank=self._rank,
            world_size=self._world_size,
            chunk_bytes=config.fixed_chunk_bytes,
            credit_bytes=config.credit_bytes,
            aim=pace.aim_for(aim, dtype, self._world_size),
            timeout_s=config.timeout_s,
            stall_warn_s=config.stall_warn_s,
            join_timeout_s=config.join_timeout_s,
            close_timeout_s=config.close_timeout_s,
            on_reducer_loss=config.on_reducer_loss,
            may_fall_back=config.fallback is not None,
            checksums=config.checksums,
            wire_dtype=dtype or 0,
            local_size=self._local_size,
        )
        self._core = Communicator(identity, meeting_point.addresses, meeting_point.dns_addresses)
        early, self._early = self._early, []
        for event in early:
            self.handle(event)
        self._tick()
        await self._over.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._links.close()

    def _tick(self) -> None:
        if not self._over.is_set():
            # The next tick is set first: time must go on even if handling this one raises.
            self._timer = self._loop.call_later(TICK_S, self._tick)
            is_asked = self._core is not None and self._core.grid.counts_losses
            self.handle(Tick(self._links.packets_lost if is_asked else 0))

    async def _look_up(self) -> None:
        """Tell the core which addresses the job's DNS names have now, if all of them can be looked up."""
        with contextlib.suppress(OSError):
            self.handle(Found(await look_up(self._meeting_points[0].dns_names)))

    def _begin(self, transfer: Transfer) -> None:
        if transfer.ready is None:
            try:
                self._staging.begin(transfer)
            except Exception:  # out of memory, perhaps
                log.exception("no private memory for a collective")
        if self._over.is_set() or self._failure is not None:
            self._staging.fail(transfer, self._failure or self._final or ClosedError(CLOSED))
            return
        self._transfers[transfer.seq] = transfer
        if transfer.contribution is None:
            self.handle(
                Broke(LocalProtocolError(f"collective {transfer.seq} could not be copied; see the log"))
            )
        else:
            self.handle(Issued(transfer.collective))

    def handle(self, event: Event) -> None:
        """Hand an event to the core, and perform the actions that follow."""
        if self._core is None:
            self._early.append(event)
            return
        try:
            for action in self._core.handle(event, time.monotonic()):
                self._perform(action)
        except MalformedFrame as error:  # a result that cannot be decoded
            self.handle(Broke(error))
        except Exception as error:  # a bug of ours: fail everywhere, with a cause
            log.exception("job %s rank %d: event failed", self._job, self._rank)
            if isinstance(event, Broke):
                self._end(event.error)
            else:
                self.handle(
                    Broke(LocalProtocolError(f"{type(event).__name__} could not be handled: {error!r}"))
                )

    def receive(self, link: int, frame: ReducerFrame) -> None:
        """Hand a frame to the core, unless its checksum says that it was damaged on the way."""
        if isinstance(frame, Result) and self._core is not None and self._core.epochs.checks:
            try:
                checksum.check(frame)
            except DataCorrupted as error:  # the stream is given up; the next epoch brings the result again
                self._links.forget(link)
                self._links.shut(link)
                self.lose(link, error)
                return
        self.handle(Received(link, frame))

    def lose(self, link: int, error: ReductionError | None) -> None:
        """Tell the core that a stream has ended."""
        if isinstance(error, MalformedFrame) and self._core is not None and self._core.epochs.checks:
            error = DataCorrupted(f"bytes that are no frame arrived: {error}")  # no reducer sends such bytes
        self.handle(Lost(link, error))

    def _perform(self, action: Action) -> None:
        match action:
            case PushChunk():
                self._push(action)
            case Store(seq, start, stop, payload):
                self._transfers[seq].store(start, stop, payload)
            case Divert(link):
                self._links.divert(link)
            case Deliver(seq):
                self._staging.deliver(self._transfers[seq])
            case Release(seq):
                self._staging.release(self._transfers.pop(seq))
            case Send(link, frame):
                self._links.send(link, frame)
            case Open(link, address, join):
                self._links.open(link, address, join, self)
            case Shut(link):
                self._links.shut(link)
            case Fail(error, is_over):
                self._fail(error)
                if is_over:
                    self._over.set()
            case Embed():
                threading.Thread(target=self._fall_back, name="reduction-fallback", daemon=True).start()
            case LookUp():
                self._links.run(self._look_up())
            case Began(reducers):
                self._announce(reducers)
                self._started.reach()
            case Closed():
                self._over.set()
            case Log(level, text):
                log.log(level, "job %s rank %d: %s", self._job, self._rank, text)

    def _announce(self, reducers: tuple[str, ...]) -> None:
        if self._rank == 0 and self._announced_ranks:
            is_private = self._meeting_points[0].embedded is not None
            planes = self._links.planes
            text = announcement.line(
                self.job or "?", self._announced_ranks, reducers, planes, is_private=is_private
            )
            log_setup.announce(log, text)

    def _push(self, action: PushChunk) -> None:
        transfer = self._transfers[action.seq]
        payload = transfer.payload(action.start, action.stop)
        crc = None
        if self._core is not None and self._core.epochs.checks:
            what = action.epoch, action.seq, action.chunk, action.held, action.collective
            crc = checksum.of_push(*what, payload)
        push = Push(action.epoch, action.seq, action.chunk, action.collective, action.held, payload, crc)
        destination = None
        if action.is_awaited:
            self._staging.prepare_result(transfer)
            destination = transfer.destination(action.start, action.stop)
        self._links.push(action.link, push, destination)

    def _end(self, error: ReductionError) -> None:
        """Fail without telling the other ranks, because there is no core that could."""
        self._fail(error)
        self._over.set()

    def _fail(self, error: ReductionError) -> None:
        """Complete every collective that has no result with the error; every later one raises it."""
        error = without_frames(self._explained(error))
        self._failure = error
        with self._lock:
            self._final = self._final or error
            if not isinstance(error, ClosedError):
                self.error = self.error or error
        self._started.fail(self._final)
        for transfer in self._transfers.values():
            self._staging.fail(transfer, error)
        self._transfers.clear()

    def _explained(self, error: ReductionError) -> ReductionError:
        """Return a JobBusy error that says more, if it is this process that uses the job's name already."""
        twins = [other for other in _clients if other is not self and other.is_same_rank(self)]
        if not isinstance(error, JobBusy) or not twins:
            return error
        text = (
            f"this process already has a state for job {self.job!r}: share that one, as in attach(ddp_model, state), "
            f"or give each state a job= of its own"
        )
        return type(error)(text)

    def is_same_rank(self, other: Client) -> bool:
        """Whether two communicators claim to be the same rank of one job, and this one is not over."""
        if self._core is None or other._core is None or self._ended:
            return False
        mine, theirs = self._core.identity, other._core.identity
        return (mine.job, mine.group, mine.rank) == (theirs.job, theirs.group, theirs.rank)

    @property
    def _job(self) -> str:
        return self._core.identity.job if self._core is not None else "?"


#: The clients of this process that have not ended.
_clients: ClosedAtExit[Client] = ClosedAtExit()
