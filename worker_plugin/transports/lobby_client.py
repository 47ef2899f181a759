"""One worker in the lobbies of all reducers of its job: its own statements, and what it hears."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any, NamedTuple

import grpc
from reduction import wire
from reduction.client.access import Access
from reduction.client.grpc_client import METHOD, GrpcEndpoint, peers_of
from reduction.errors import MalformedFrame, ReducerUnavailable, ReductionError, Unauthenticated
from reduction.limits import LOBBY_ENTRIES_MAX, LOBBY_S, LOBBY_SAYS_MAX, LOBBY_SAYS_PER_S
from reduction.log_limit import LINES
from reduction.model import LobbyEntry, LobbyNews, LobbyRequest

from worker_plugin.process import fork
from worker_plugin.process.io_loop import io_loop
from worker_plugin.process.life import life_port

log = logging.getLogger(__name__)

LOBBY_METHOD = METHOD.replace("Session", "Lobby")
#: Pause before a reducer is dialled again, in seconds.
REDIAL_S = 0.2
#: How long a worker whose call has ended still counts as present, in seconds, because it dials again if only its
#: connection was lost. This does not apply if a reducer knows that its process has ended (reducer/transports/lives.py).
GONE_S = 1.0
#: How long a leaving worker may take to send its last statement, in seconds.
LEAVE_S = 1.0


class _Known(NamedTuple):
    """A reducer's last report of a worker."""

    entry: LobbyEntry
    #: When the reducer sent it.
    said_at: float
    #: From when on a worker reported as gone counts as gone.
    gone_at: float

    def believed(self, now: float) -> LobbyEntry:
        is_awaited = self.entry.is_gone and now < self.gone_at
        return replace(self.entry, is_gone=False) if is_awaited else self.entry


class LobbyClient:
    """Says the same to all reducers, and repeats it to a reducer that comes back. For any thread.

    Args:
        addresses: of the reducers.
        access: the credentials presented to them.
        job: the job's name.
        nonce: of this worker process, 16 bytes.
        on_news: called on the I/O thread when a reducer has sent something, or is gone.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        access: Access,
        job: str,
        nonce: bytes,
        on_news: Callable[[], None],
    ) -> None:
        self._job, self._nonce = job, nonce
        self._on_news = on_news
        self._lock = threading.Lock()
        self._entry = b""
        #: The latest report of each reachable reducer on all workers.
        self._heard: dict[str, Mapping[bytes, _Known]] = {}
        #: Until when the statements sent to each reducer use up its allowance of LOBBY_SAYS_PER_S.
        self._paid_until = dict.fromkeys(addresses, 0.0)
        #: Why each unreachable reducer cannot be reached.
        self._reasons: dict[str, ReductionError] = {}
        #: Addresses of the connections, which forked children must drop.
        self._peers: set[tuple[str, int]] = set()
        self._changed = {address: asyncio.Event() for address in addresses}
        self._loop = io_loop()
        self._is_closed = False
        self._tasks = [
            asyncio.run_coroutine_threadsafe(self._stay(address, access), self._loop) for address in addresses
        ]
        fork.register(self)

    def say(self, entry: bytes) -> None:
        """Set the worker's statement from now on."""
        with self._lock:
            self._entry = entry
        self._loop.call_soon_threadsafe(self._tell)

    def heard(self) -> tuple[tuple[LobbyEntry, ...], ...]:
        """Return the last report of each reducer that is currently reachable; see GONE_S."""
        now = time.monotonic()
        with self._lock:
            answers = list(self._heard.values())
        return tuple(tuple(known.believed(now) for known in workers.values()) for workers in answers)

    def why_unheard(self) -> ReductionError | None:
        """Return why no reducer can be reached; None if one can, or if that is not yet known for all of them."""
        with self._lock:
            reasons = list(self._reasons.values())
            if self._heard or len(reasons) < len(self._changed):
                return None
        if all(isinstance(reason, Unauthenticated) for reason in reasons):
            return reasons[0]
        return ReducerUnavailable(f"no reducer can be reached: {'; '.join(map(str, reasons))}")

    def close(self) -> None:
        """Leave all lobbies once everything is sent, within LEAVE_S. Does not wait for that, and takes no lock."""
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._leave)

    def wait_closed(self) -> None:
        """Wait until this worker has left all lobbies, at most LEAVE_S."""
        wait(self._tasks, LEAVE_S)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`."""
        return set(self._peers), []

    def _leave(self) -> None:
        self._tell()
        for task in self._tasks:
            self._loop.call_later(LEAVE_S, task.cancel)

    def _tell(self) -> None:
        for changed in self._changed.values():
            changed.set()

    async def _stay(self, address: str, access: Access) -> None:
        endpoint = GrpcEndpoint(address, access)
        try:
            while not self._is_closed:
                await self._talk(endpoint)
                with self._lock:
                    self._heard.pop(address, None)
                if not self._is_closed:
                    self._on_news()
                    await asyncio.sleep(REDIAL_S)
        finally:
            await endpoint.close()

    async def _talk(self, endpoint: GrpcEndpoint) -> None:
        """Stay in one lobby until the call ends."""
        address = endpoint.address
        reason: ReductionError | None = None
        self._peers |= await peers_of(address)
        is_silent = True
        method: Any = endpoint.channel().stream_stream(LOBBY_METHOD)
        call = method(metadata=endpoint.access.metadata)
        writer = asyncio.create_task(self._write(call, address))
        workers: dict[bytes, _Known] = {}
        try:
            async for data in call:
                news = wire.lobby_response_from_wire(data)
                is_silent = False
                workers = _with_news(workers, news, time.monotonic())
                if news.has_more:
                    continue
                with self._lock:
                    self._heard[address] = workers
                    self._reasons.pop(address, None)
                self._on_news()
            reason = ReducerUnavailable(f"{address}: it has ended the call")
        except grpc.aio.AioRpcError as error:
            reason = await endpoint.reason(error.code(), error.details(), is_silent=is_silent)
        except MalformedFrame as error:
            LINES.log(log, logging.WARNING, "lobby", address, "%s: %s", address, error)
            reason = error
        finally:
            if reason is not None:
                with self._lock:
                    self._reasons[address] = reason
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: Any, address: str) -> None:
        changed = self._changed[address]
        changed.set()
        # A statement that no reducer could hear costs nothing: a reducer may be away for minutes.
        await call.wait_for_connection()
        while True:
            await changed.wait()
            await self._wait_to_say(address)
            changed.clear()
            is_last = self._is_closed  # anything said before `close` is read after this
            with self._lock:
                entry = self._entry
            if entry:
                request = LobbyRequest(self._job, self._nonce, entry, life_port=life_port())
                await call.write(wire.lobby_request_to_wire(request))
            if is_last:
                await call.done_writing()
                return

    async def _wait_to_say(self, address: str) -> None:
        """Wait until a reducer will surely accept a statement. Any made in the meantime are sent with it."""
        now = time.monotonic()
        paid_until = max(now, self._paid_until[address]) + 1 / LOBBY_SAYS_PER_S
        self._paid_until[address] = paid_until
        await asyncio.sleep(paid_until - now - LOBBY_SAYS_MAX / 2 / LOBBY_SAYS_PER_S)


def _with_news(workers: Mapping[bytes, _Known], news: LobbyNews, now: float) -> dict[bytes, _Known]:
    """Return a reducer's report on all workers, given its previous one.

    Raises:
        MalformedFrame: it reports more workers than it can know.
    """
    after = dict(workers) if news.adds else {}
    for entry in news.entries:
        before = workers.get(entry.nonce)
        gone_at = now
        if before is not None and not entry.has_ended:
            gone_at = before.gone_at if before.entry.is_gone else now + GONE_S
        after[entry.nonce] = _Known(entry, now, gone_at)
    # The reducer forgets them too, without reporting it.
    after = {
        nonce: known
        for nonce, known in after.items()
        if not known.entry.is_gone or now <= known.said_at + LOBBY_S
    }
    if len(after) > 2 * LOBBY_ENTRIES_MAX:
        raise MalformedFrame(f"a lobby of {len(after)} workers; the limit is {LOBBY_ENTRIES_MAX}")
    return after
