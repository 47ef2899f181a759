"""A rank: the real core, with a simulated driver and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reduction.errors import (
    DataCorrupted,
    MalformedFrame,
    ReducerUnavailable,
    ReductionError,
    ResourceExhausted,
)
from reduction.model import Collective, Join, Push, Result
from reduction.pacing import Sent
from reduction.wire import checksum
from simulation.network import End, Network, Process

from worker_plugin.core import actions, events
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore
from worker_plugin.driver import TICK_S


class Wrong(AssertionError):
    """The core asked for something that no driver could do."""


class Owner(Protocol):
    """The receiver of a rank's outcomes."""

    def on_result(self, rank: SimRank, seq: int, result: bytes) -> None: ...

    def on_failed(self, rank: SimRank, error: ReductionError) -> None: ...

    def on_over(self, rank: SimRank) -> None: ...


@dataclass(slots=True)
class _Transfer:
    contribution: bytes
    result: bytearray
    is_delivered: bool = False


class SimRank(Process):
    """One life of a rank's process.

    Args:
        network: its network.
        host: its name.
        identity: of the core.
        known: reducer addresses given to the job at its start.
        names: returns the addresses of the currently named reducers.
        owner: receives the outcomes.
        drift: speed of its clock, as a factor of true time.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        identity: Identity,
        known: tuple[str, ...],
        names: Callable[[], tuple[str, ...]],
        owner: Owner,
        drift: float = 1.0,
    ) -> None:
        super().__init__(network, host)
        self.identity = identity
        self._names, self._owner, self._drift = names, owner, drift
        self.core = RankCore(identity, known, known)
        #: The current connection of each link.
        self.links: dict[int, End] = {}
        #: The first frame of the latest connection.
        self.join: Join | None = None
        self._transfers: dict[int, _Transfer] = {}
        self.is_over = False
        self._tick()

    @property
    def now(self) -> float:
        """The time according to its own clock."""
        return 1000.0 + self.network.clock.now * self._drift

    def issue(self, collective: Collective, contribution: bytes) -> None:
        """Issue the next collective."""
        self._transfers[self.core.window.issued] = _Transfer(contribution, bytearray(len(contribution)))
        self.handle(events.Issued(collective))

    def handle(self, event: events.Event) -> None:
        """Pass an event to the core, and perform the actions that it returns."""
        if not self.is_alive or self.is_over:
            return
        for action in self.core.handle(event, self.now):
            self._perform(action)

    def _tick(self) -> None:
        if self.is_alive and not self.is_over:
            self.network.clock.at(self.network.clock.now + TICK_S / self._drift, self._tick)
            self.take(lambda: self.handle(events.Tick(self._sent())))

    def _sent(self) -> dict[int, Sent]:
        if not (self.network.is_metered and self.core.wants_sent):
            return {}
        return {number: end.meter.sent for number, end in self.links.items() if end.meter is not None}

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.Open(link, address, join):
                self.join = join
                self._open(link, address)
                self.links[link].send(join)
            case actions.Send(link, frame):
                self._send(link, frame)
            case actions.PushChunk():
                self._push(action)
            case actions.Store(seq, start, stop, payload):
                transfer = self._transfers[seq]
                if transfer.is_delivered or len(payload) != stop - start:
                    raise Wrong(f"result of collective {seq} stored after its delivery, or of a wrong size")
                transfer.result[start:stop] = payload
            case actions.Deliver(seq):
                transfer = self._transfers[seq]
                transfer.is_delivered = True
                self._owner.on_result(self, seq, bytes(transfer.result))
            case actions.Release(seq):
                del self._transfers[seq]
            case actions.Shut(link):
                if (end := self.links.pop(link, None)) is not None:
                    end.close()
            case actions.Throttle(link, bytes_per_s):
                if (end := self.links.get(link)) is not None and end.meter is not None:
                    end.meter.pace(bytes_per_s)
            case actions.LookUp():
                at = self.network.clock.now + self.network.random.random()
                self.network.clock.at(at, lambda: self.take(lambda: self.handle(events.Found(self._names()))))
            case actions.Embed():
                error = ReducerUnavailable("no fallback is simulated")
                self.network.clock.at(
                    self.network.clock.now, lambda: self.take(lambda: self.handle(events.NoFallback(error)))
                )
            case actions.Fail(error, is_over):
                self._owner.on_failed(self, error)
                if is_over:
                    self._end()
            case actions.Closed():
                self._end()

    def _end(self) -> None:
        self.is_over = True
        for end in self.links.values():
            end.close()
        self.links.clear()
        self._owner.on_over(self)

    def _open(self, link: int, address: str) -> None:
        if (old := self.links.pop(link, None)) is not None:
            old.close()
        end = self.links[link] = self.network.connect(self, address)

        def on_frame(frame: object) -> None:
            if self.links.get(link) is end:
                self._receive(link, end, frame)

        def on_lost(error: ReductionError | None) -> None:
            if self.links.get(link) is end:
                del self.links[link]
                self._lose(link, error)

        end.on_frame, end.on_lost = on_frame, on_lost

    def _send(self, link: int, frame: object) -> None:
        if (end := self.links.get(link)) is not None:
            end.send(frame)

    def _push(self, action: actions.PushChunk) -> None:
        if action.seq not in self._transfers:
            raise Wrong(f"collective {action.seq} is pushed after its contribution was released")
        payload = memoryview(self._transfers[action.seq].contribution)[action.start : action.stop]
        what = action.epoch, action.seq, action.chunk
        crc = None
        if self.core.has_checksums:
            crc = checksum.of_push(*what, action.held, action.collective, payload)
        self._send(action.link, Push(*what, action.collective, action.held, payload, crc))

    def _receive(self, link: int, end: End, frame: object) -> None:
        """Pass a frame to the core, or drop the stream if the frame was damaged, as `Driver.receive` does."""
        error: ReductionError | None = frame if isinstance(frame, MalformedFrame) else None
        if isinstance(frame, Result) and self.core.has_checksums:
            try:
                checksum.check(frame)
            except DataCorrupted as damage:
                error = damage
        if error is None:
            self.handle(events.Received(link, frame))
            return
        del self.links[link]
        end.close()
        self._lose(link, error)

    def _lose(self, link: int, error: ReductionError | None) -> None:
        if isinstance(error, MalformedFrame) and self.core.has_checksums:
            error = DataCorrupted(str(error))
        self.handle(events.StreamLost(link, error))
        if isinstance(error, ResourceExhausted):
            self.handle(events.Broke(error))
