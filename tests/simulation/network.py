"""Hosts, processes, and the connections between them, in simulated time.

A connection behaves like TCP: frames arrive in order, after a while or never. The path between two hosts can be cut in
one direction or both, and then frames wait. A cut of SILENCE_S breaks the connections on the path, as TCP's own
timeouts do; after a shorter one they continue. The end of a process resets its connections, which may lose the last
frames that it sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

from reduction.errors import ReducerAbsent, ReducerUnavailable, ReductionError
from reduction.limits import ID_BYTES
from reduction.model import Push, Result
from simulation.meter import Meter
from simulation.paths import LATENCY_S, Paths

#: TCP_USER_TIMEOUT of the product, and the time limit of a dial, in seconds.
SILENCE_S, DIAL_S = 10.0, 5.0


def number_of(name: str) -> bytes:
    """Return a fixed number for a name, in place of one that the product draws at random."""
    return blake2b(name.encode(), digest_size=ID_BYTES).digest()


class Process:
    """A process that takes messages: later while it is frozen, and never once it is dead."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        self.is_alive = True
        self._frozen_until = 0.0
        self._inbox: deque[Callable[[], None]] = deque()
        self.ends: set[End] = set()

    def take(self, what: Callable[[], None]) -> None:
        """Run `what` as soon as the process is not frozen."""
        if not self.is_alive:
            return
        if self.network.clock.now < self._frozen_until:
            self._inbox.append(what)
        else:
            what()

    def freeze(self, seconds: float) -> None:
        """Stop the process as SIGSTOP does: its kernel still answers."""
        self._frozen_until = self.network.clock.now + seconds
        self.network.clock.at(self._frozen_until, self._thaw)

    def _thaw(self) -> None:
        while self._inbox and self.network.clock.now >= self._frozen_until:
            self._inbox.popleft()()

    def kill(self) -> None:
        """End the process immediately."""
        self.is_alive = False
        self._inbox.clear()
        for end in sorted(self.ends, key=lambda end: end.number):
            end.reset()


@dataclass(slots=True)
class _Item:
    """Something in flight: a frame, or the end of the connection."""

    arrives_at: float
    frame: Any = None
    is_end: bool = False
    error: ReductionError | None = None


class End:
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self.network, self.process, self.number = network, process, number
        self.peer: End = self
        #: None if the amount sent is not measured and cannot be paced.
        self.meter = Meter(network.clock) if network.is_metered else None
        self.is_open = True
        #: Whether the process knows of the connection; frames may arrive before that.
        self.is_accepted = True
        #: Called by the dialling process once the other one has accepted the connection.
        self.on_open: Callable[[], None] | None = None
        self.on_frame: Callable[[Any], None] = lambda frame: None
        self.on_lost: Callable[[ReductionError | None], None] = lambda error: None
        #: Frames in flight to this end.
        self._coming: deque[_Item] = deque()
        #: Whether the end of the connection is in flight to this end; frames that it sends are then lost.
        self._is_broken = False
        #: Number of frames that may still arrive at both ends together before the connection breaks.
        self.fuse: list[int] | None = None
        #: Replaces the next frame to this end by a damaged one.
        self.damage: Callable[[Any], Any] | None = None
        process.ends.add(self)

    def send(self, frame: Any) -> None:
        """Send a frame to the other end."""
        if self.is_open and not self._is_broken:
            hosts = self.process.host, self.peer.process.host
            arrives_at = self.network.arrival(*hosts)
            if self.meter is not None:
                nbytes = frame.payload.nbytes if isinstance(frame, (Push, Result)) else 0
                path_s = arrives_at - self.network.clock.now
                arrives_at = self.meter.arrival(nbytes, self.network.loss(*hosts), path_s)
            self.peer._expect(_Item(arrives_at, frame))

    def close(self) -> None:
        """End the connection after the frames sent so far."""
        if self.is_open:
            self._leave()
            if not self._is_broken:
                self.peer._hear_of_end(None)

    def reset(self) -> None:
        """End the connection because this process has ended; the last frames that it sent may be lost."""
        if self.is_open:
            self._leave()
            if not self._is_broken:
                self.peer._break()

    def break_both(self) -> None:
        """Break the connection; both ends learn of it."""
        for end in (self, self.peer):
            end._break()

    def _break(self) -> None:
        if self.is_open and not self._is_broken:
            for _ in range(self.network.random.randint(0, len(self._coming))):
                self._coming.pop()
            self._hear_of_end(ReducerUnavailable("connection reset"))

    def _hear_of_end(self, error: ReductionError | None) -> None:
        """Tell this end that the connection has ended, after the frames in flight."""
        self._expect(
            _Item(self.network.arrival(self.peer.process.host, self.process.host), is_end=True, error=error)
        )
        self._is_broken = True

    def lose(self, error: ReductionError) -> None:
        """End the connection with this error."""
        if self.is_open:
            self._leave()
            self.process.take(lambda: self.on_lost(error))

    def _leave(self) -> None:
        self.is_open = False
        self.network.ends.pop(self.number, None)
        self._coming.clear()
        self.process.ends.discard(self)

    def _expect(self, item: _Item) -> None:
        if not self.is_open:
            return
        if self._coming:
            item.arrives_at = max(item.arrives_at, self._coming[-1].arrives_at)
        self._coming.append(item)
        self.network.clock.at(item.arrives_at, self.pump)

    def pump(self) -> None:
        """Deliver the frames that have arrived, unless the path is cut."""
        now = self.network.clock.now
        while self.is_accepted and self._coming and self._coming[0].arrives_at <= now:
            if (healed_at := self.network.cut_until(self.peer.process.host, self.process.host)) > now:
                self.network.clock.at(healed_at, self.pump)
                return
            item = self._coming.popleft()
            if item.is_end:
                self._leave()
                self.process.take(partial(self.on_lost, item.error))
                return
            if self.fuse is not None:
                self.fuse[0] -= 1
                if self.fuse[0] < 0:
                    self.fuse = self.peer.fuse = None
                    self._coming.clear()
                    self._is_broken = False  # an end of the connection in flight is lost too
                    self.break_both()
                    return
            frame, damage = item.frame, self.damage
            if damage is not None:
                self.damage = None
                frame = damage(frame)
            # A process may end the connection while it still has frames in its inbox.
            self.process.take(partial(self.on_frame, frame))


@dataclass(slots=True)
class _Cut:
    since: float
    until: float


@dataclass(slots=True)
class Network(Paths):
    """All hosts, listeners and connections."""

    #: Whether ends measure how much they send, and can be paced.
    is_metered: bool = False
    #: By address, the listening process and the function that accepts a new connection.
    listeners: dict[str, tuple[Process, Callable[[End], None]]] = field(default_factory=dict)
    #: By address, the time until which dials are refused.
    refusing: dict[str, float] = field(default_factory=dict)
    #: By address, the number of frames after which the next connection breaks.
    fuses: dict[str, int] = field(default_factory=dict)
    #: Other names of hosts.
    aliases: dict[str, str] = field(default_factory=dict)
    _cuts: dict[tuple[str, str], _Cut] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    _count: int = 0

    def cut_until(self, source: str, target: str) -> float:
        """Return until when nothing from `source` arrives at `target`; this is in the past if the path is whole."""
        cut = self._cuts.get((source, target))
        return -1.0 if cut is None else cut.until

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Let nothing from `source` arrive at `target` for this time."""
        now = self.clock.now
        if source == target:
            return
        cut = self._cuts.get((source, target))
        if cut is None or cut.until <= now:
            cut = self._cuts[source, target] = _Cut(now, now)
        cut.until = max(cut.until, now + seconds)
        self.clock.at(max(now, cut.since + SILENCE_S), lambda: self._time_out(source, target))

    def _time_out(self, source: str, target: str) -> None:
        cut = self._cuts[source, target]
        if cut.until <= self.clock.now or self.clock.now < cut.since + SILENCE_S:
            return
        for end in list(self.ends.values()):
            if end.is_open and (end.process.host, end.peer.process.host) in (
                (source, target),
                (target, source),
            ):
                end.lose(ReducerUnavailable("connection timed out"))

    def connect(self, process: Process, address: str) -> End:
        """Dial an address. Frames may be sent immediately; `on_lost` reports a failure."""
        host, _, port = address.rpartition(":")
        address = f"{self.aliases.get(host, host)}:{port}"
        self._count += 2
        near = self.ends[self._count] = End(self, process, self._count)
        listener, _ = self.listeners.get(address, (None, None))
        if listener is None or not listener.is_alive or self.clock.now < self.refusing.get(address, -1.0):
            near._leave()
            refused = ReducerAbsent(f"{address}: Connection refused")
            self.clock.at(self.clock.now + 2 * LATENCY_S, lambda: process.take(lambda: near.on_lost(refused)))
            return near
        far = self.ends[self._count + 1] = End(self, listener, self._count + 1)
        near.peer, far.peer = far, near
        far.is_accepted = False
        if (frames := self.fuses.pop(address, None)) is not None:
            near.fuse = far.fuse = [frames]
        arrives_at, given_up_at = self.arrival(process.host, listener.host), self.clock.now + DIAL_S
        self.clock.at(arrives_at, lambda: self._arrive(near, far, address, given_up_at))
        return near

    def _arrive(self, near: End, far: End, address: str, given_up_at: float) -> None:
        """Deliver a dial to the listener once the path is whole."""
        if not (near.is_open and far.is_open):
            return

        def give_up(why: str) -> None:
            near.lose(ReducerUnavailable(f"{address}: {why}"))
            far.lose(ReducerUnavailable(why))

        hosts = near.process.host, far.process.host
        if (healed_at := max(self.cut_until(*hosts), self.cut_until(*hosts[::-1]))) > self.clock.now:
            at = min(healed_at, given_up_at)
            again = at < given_up_at
            self.clock.at(
                at, lambda: self._arrive(near, far, address, given_up_at) if again else give_up("timed out")
            )
            return

        listener, accept = self.listeners[address]
        if listener is not far.process:
            give_up("connection reset")
            return

        def accepted() -> None:
            accept(far)
            far.is_accepted = True
            far.pump()
            if near.on_open is not None and near.is_open:
                on_open, back_at = near.on_open, self.arrival(*hosts[::-1])
                self.clock.at(back_at, lambda: near.process.take(on_open))

        listener.take(accepted)
