"""A rank's communicator: the interface for its users, and how it meets the other ranks.

    user's thread       submits collectives, waits in `connect` and `close`
    discovery thread    looks for the job and its reducers once; a second one looks for a fallback
    loop thread         drives the protocol (driver.py)
    staging thread      copies results to tensors and completes futures (tensors/staging.py)

They communicate through `call_soon_threadsafe` and the staging queue, and share nothing but `_ending` and, under
its lock, `_takes_none`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from reduction.client.access import Access
from reduction.errors import (
    ClosedError,
    ConfigError,
    JobBusy,
    LocalProtocolError,
    ReductionError,
)
from reduction.model import Collective, Place
from reduction.process.place import own_host
from reduction.rails import job_of
from reduction.shortage import failure_of
from reduction.transports.shared import OwnMemory

from worker_plugin.communicator import CLOSED, Request
from worker_plugin.config import PluginConfig
from worker_plugin.core.events import Broke, Close, Connect, Leave, NoFallback
from worker_plugin.core.flow import credit
from worker_plugin.core.identity import Identity
from worker_plugin.discovery import announcement
from worker_plugin.discovery.meeting_point import MeetingPoint
from worker_plugin.discovery.rank_group import RankGroup
from worker_plugin.discovery.waiting_for_ranks import Discovery
from worker_plugin.driver import Driver, Start
from worker_plugin.ending import Ending
from worker_plugin.io_process.remote import RemoteDriver
from worker_plugin.process import fork, log_setup
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.process.io_loop import io_loop
from worker_plugin.process.life import life_port
from worker_plugin.reporting import Reporter
from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import OwnEncoding
from worker_plugin.tensors.futures import Future, fail, make_future, without_frames
from worker_plugin.tensors.gpu import streams
from worker_plugin.tensors.sent_as import encoding_of
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer
from worker_plugin.timeline import on_demand
from worker_plugin.timeline.recorder import Recorder

log = logging.getLogger(__name__)

#: How long close() waits in addition to close_timeout_s, for streams, the embedded reducer and the last copies, in
#: seconds.
CLOSE_EXTRA_S = 8.0


class Client:
    """A rank's communicator. Created by the first collective, in the process that uses it.

    Args:
        config: settings; its rank and world size are ignored.
        ranks: the ranks that reduce together, and this rank's number among them.
        agree: returns where the ranks meet, or raises a ReductionError. It is called once, on its own thread, and may
            block until all ranks are there.
        fall_back: the same once no reducer is left; for settings with a `fallback`.
        local_size: number of processes whose sum each contribution is.
        host: the name by which other ranks' errors refer to this one.
        announced_ranks: rank 0's name for all ranks when it announces this communicator. Empty if another communicator
            is announced instead.
        goes_on: see `Identity.goes_on`.
    """

    def __init__(
        self,
        config: PluginConfig,
        ranks: RankGroup,
        agree: Callable[[], MeetingPoint],
        fall_back: Callable[[], MeetingPoint] | None = None,
        *,
        local_size: int = 1,
        host: str | None = None,
        announced_ranks: str | None = None,
        goes_on: bool = False,
    ) -> None:
        self._ending = Ending()
        if announced_ranks is None:
            announced_ranks = announcement.ranks_text(ranks.size, label=ranks.label)
        self._announced_ranks = announced_ranks
        self._config = config
        self._rank = ranks.rank
        self._world_size = ranks.size
        self._group = ranks.label
        self._agree = agree
        self._meet_again = fall_back
        self._goes_on = goes_on
        self.local_size = local_size
        if host is None:
            host = socket.gethostname() + (f", global rank {ranks.global_rank}" if ranks.label else "")
        self._host = host
        #: Whether the loop no longer takes collectives.
        self._takes_none = False
        self._issued = 0
        #: Whether the user wants it to end now, without waiting for anything.
        self._is_aborted = False
        #: Known once the ranks have met.
        self._identity: Identity | None = None
        #: The job's meeting point; after a fallback there is a second one.
        self._meeting_points: list[MeetingPoint] = []
        self._loop = io_loop()
        memory = OwnMemory(is_lent=config.io_process)
        self.recorder = Recorder(config.trace)
        self._staging = Staging(ArenaPool.of(memory), self._on_arriving)
        driver = RemoteDriver if config.io_process else Driver
        try:
            self._driver: Driver | RemoteDriver = driver(self, self._staging, self.recorder, memory)
        except ReductionError:  # the I/O process could not be started
            self._staging.finish(lambda: None)
            raise
        fork.register(self)
        _clients.add(self)
        self._discovery = Discovery(target=self._discover, name="reduction-discovery", daemon=True)
        try:
            self._discovery.start()
        except RuntimeError as error:  # no more threads can be created
            self._begin(failure_of("cannot start a thread that looks for the other ranks", error))

    # ---- the user's thread ----

    def submit(self, request: Request) -> Future:
        """Issue the next collective; see `Communicator.submit`."""
        tensor = request.tensor
        if self._config.io_process and tensor.device.type != "cpu":
            raise ConfigError(
                f"io_process is for tensors on the CPU, and this one is on {tensor.device}: leave the setting out"
            )
        future = make_future(tensor)
        if self._world_size * self.local_size > 1:
            dtype, numel, encoding = encoding_of(
                tensor, request.dtype, request.op, self._config.wire, request.slices
            )
        else:
            dtype, numel, encoding = request.dtype, tensor.numel(), OwnEncoding(tensor)
        ready = streams.written(tensor)  # covers everything the encoding has put there, too
        collective = Collective(request.op, dtype, numel, request.fingerprint)
        with self._ending.lock:
            self._ending.check()
            progress = self.recorder.begin(self._issued, collective)
            transfer = Transfer(self._issued, collective, tensor, encoding, future, progress, ready)
            self._issued += 1
            if not self._staging.download(transfer):
                self._driver.take(transfer)
        return future

    @property
    def error(self) -> ReductionError | None:
        """See `Communicator.error`."""
        return self._ending.error

    @property
    def job(self) -> str | None:
        """The job's name; see `Communicator.job`."""
        return None if self._identity is None else job_of(self._identity.job)

    def connect(self) -> None:
        """Wait for ranks and reducers; see `Communicator.connect`."""
        self._loop.call_soon_threadsafe(self._driver.handle, Connect())
        self._ending.wait()

    def abandon(self, error: ReductionError) -> None:
        """Fail here and, through the reducers, on all other ranks; see `Communicator.abandon`."""
        if isinstance(error, ClosedError) and not self._is_aborted:
            self._is_aborted = True
            self._discovery.give_up_at = time.monotonic() + self._config.close_timeout_s
        self._ending.end(error)
        self._loop.call_soon_threadsafe(self._driver.handle, Broke(error))

    def begin_close(self) -> None:
        """Leave in the background; see `Communicator.begin_close`."""
        self._ending.end(ClosedError(CLOSED))
        self._loop.call_soon_threadsafe(self._driver.handle, Close())

    def close(self) -> None:
        """Leave, and return when that is done; see `Communicator.close`."""
        self.begin_close()
        if self._is_aborted and self._identity is None:
            return  # the ranks have not met; late ones are told while this process lives
        self._staging.join(self._config.close_timeout_s + CLOSE_EXTRA_S)

    def leave(self) -> None:
        """Leave once everything issued is done; see `Communicator.leave`."""
        self._loop.call_soon_threadsafe(self._on_last)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`."""
        return self._driver.inherited()

    # ---- the download and discovery threads ----

    def _on_arriving(self, transfer: Transfer) -> None:
        with self._ending.lock:
            if not self._takes_none:
                self._driver.take(transfer)
                return
        fail(transfer.future, self.final)

    def _discover(self) -> None:
        """Look for job and reducers, then let the loop take over."""
        self._begin(self._ask(self._agree))

    def _begin(self, meeting_point: MeetingPoint | ReductionError) -> None:
        asyncio.run_coroutine_threadsafe(self._live(meeting_point), self._loop)

    def _fall_back(self) -> None:
        """Have rank 0 start a reducer, because none is left. Runs on its own thread."""
        assert self._meet_again is not None
        self._loop.call_soon_threadsafe(self._on_fallback, self._ask(self._meet_again))

    def _ask(self, question: Callable[[], MeetingPoint]) -> MeetingPoint | ReductionError:
        """Return where the ranks meet, or why they do not. May block."""
        try:
            return question()
        except ReductionError as error:
            return error
        except Exception as error:
            failure = failure_of("discovery failed", error)
            if isinstance(failure, LocalProtocolError):
                log.exception("discovery failed")
            return failure

    # ---- the loop thread ----

    def _on_last(self) -> None:
        self._driver.handle(Leave(self._issued))

    def _on_fallback(self, meeting_point: MeetingPoint | ReductionError) -> None:
        if isinstance(meeting_point, ReductionError):
            self._driver.handle(NoFallback(meeting_point))
        elif self._driver.is_over:  # it is no longer needed
            threading.Thread(target=meeting_point.stop, name="reduction-fallback", daemon=True).start()
        else:
            self._meeting_points.append(meeting_point)
            self._driver.fell_back(meeting_point.addresses[0], meeting_point.access)

    async def _live(self, meeting_point: MeetingPoint | ReductionError) -> None:
        try:
            if isinstance(meeting_point, ReductionError):
                self._driver.end(self.final if self._is_aborted else meeting_point)
                return
            self._meeting_points.append(meeting_point)
            await self._serve(meeting_point)
        except Exception as error:
            failure = failure_of("the communicator failed", error)
            if isinstance(failure, LocalProtocolError):
                log.exception("the communicator failed")
            self._driver.end(failure)
        finally:
            with self._ending.lock:
                self._takes_none = True
                self._ending.end(ClosedError(CLOSED))
            await asyncio.sleep(0)  # takes the collectives that were submitted before
            self._driver.release()
            self._staging.finish(self._on_end)

    def _on_end(self) -> None:
        for meeting_point in self._meeting_points:
            meeting_point.stop()
        self.recorder.save(self.error)

    async def _serve(self, meeting_point: MeetingPoint) -> None:
        config, wire = self._config, self._config.wire
        dtype = None if wire is None else wire.dtype
        private = dict.fromkeys(meeting_point.colocated, meeting_point.colocated_access)
        transport = config.transport
        target = credit.GRPC if transport == "grpc" else credit.TCP
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
            target=credit.target_for(target, dtype, self._world_size),
            timeout_s=config.timeout_s,
            stall_warn_s=config.stall_warn_s,
            join_timeout_s=config.join_timeout_s,
            close_timeout_s=config.close_timeout_s,
            on_reducer_loss=config.on_reducer_loss,
            may_fall_back=config.fallback is not None,
            checksums=config.checksums,
            wire_dtype=dtype or 0,
            local_size=self.local_size,
            place=Place(own_host(), config.link_mbit),
            life_port=life_port(),
            uses_data_ports=transport != "grpc",
            goes_on=self._goes_on,
            named=meeting_point.named,
            run=meeting_point.run or config.run or "",
        )
        self._identity = identity
        self.recorder.describe(identity.job, identity.rank, identity.world_size)
        where = meeting_point.addresses, meeting_point.sources
        start = Start(identity, *where, transport, meeting_point.access, private)
        tasks = [asyncio.create_task(work) for work in self._observers(start)]
        try:
            await self._driver.run(start)
        finally:
            for task in tasks:
                task.cancel()

    def _observers(self, start: Start) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the tasks requested by the settings `report_s` and `trace` while the communicator lives."""
        config, identity = self._config, start.identity
        if config.report_s and self._rank == 0 and self._announced_ranks:  # only the first of several rails
            title = job_of(identity.job)
            reporter = Reporter(
                self.recorder, identity.job, self._group, title, self._world_size, config.link_mbit
            )
            yield reporter.run(config.report_s, lambda: self._accesses(start))
        if config.trace is not None:
            yield on_demand.watch(self.recorder, config.trace)

    def _accesses(self, start: Start) -> Mapping[str, Access]:
        """Return the credentials for each reducer, by address. An I/O process does not report siblings."""
        if isinstance(self._driver, Driver):
            return self._driver.links.accesses()
        return {address: start.private.get(address, start.access) for address in start.addresses}

    @property
    def final(self) -> ReductionError:
        """The error of collectives submitted after the end; see `DriverOwner.final`."""
        return self._ending.final or ClosedError(CLOSED)

    def on_started(self, reducers: tuple[str, ...], planes: Sequence[str]) -> None:
        """Let `connect` return, and announce job, ranks, reducers and planes once."""
        global _has_started
        _has_started = True
        if self._rank == 0 and self._announced_ranks:
            meeting_point = self._meeting_points[0]
            text = announcement.line(
                self.job or "?",
                self._announced_ranks,
                # The others are further processes of these. After a fallback, none is from the first meeting point.
                [address for address in reducers if address in meeting_point.addresses] or reducers,
                len(reducers),
                planes,
                is_private=meeting_point.embedded is not None,
                colocated=meeting_point.colocated,
                source=meeting_point.source,
            )
            log_setup.announce(log, text)
        self._ending.begin()

    def on_failed(self, error: ReductionError) -> ReductionError:
        """Raise an error in `connect` and in later collectives; see `DriverOwner.on_failed`."""
        error = without_frames(self._explained(error))
        if not self._ending.end(error) and self.error is None and not isinstance(error, ClosedError):
            self._ending.error = error  # it failed while it was leaving
        return error

    def fall_back(self) -> None:
        """Meet the other ranks at a reducer that rank 0 starts; see `DriverOwner.fall_back`."""
        threading.Thread(target=self._fall_back, name="reduction-fallback", daemon=True).start()

    def _explained(self, error: ReductionError) -> ReductionError:
        """Return a more specific JobBusy error if this very process already uses the job's name."""
        twins = [other for other in _clients if other is not self and other.is_same_rank(self)]
        if not isinstance(error, JobBusy) or not twins:
            return error
        text = (
            f"this process already has a state for job {self.job!r}: share it, as in attach(ddp_model, state), "
            f"or give each state its own job="
        )
        return type(error)(text)

    def is_same_rank(self, other: Client) -> bool:
        """Return whether two communicators claim to be the same rank of one job, and this one has not ended."""
        mine, theirs = self._identity, other._identity
        if mine is None or theirs is None or self._takes_none:
            return False
        return (mine.job, mine.group, mine.rank) == (theirs.job, theirs.group, theirs.rank)


#: The clients of this process that have not ended.
_clients: ClosedAtExit[Client] = ClosedAtExit()
_has_started = False


def has_started() -> bool:
    """Return whether any communicator of this process has met its reducers and all other ranks."""
    return _has_started
