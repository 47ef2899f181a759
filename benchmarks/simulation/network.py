"""Simulated links, and the TCP connections that share them.

Every host's link has a token bucket with a queue in front of it in each direction. A packet waits for the bucket of the
sender's link, then for that of the receiver's link, first in, first out. If the queue at its own host is full, the
connection waits, as on Linux. If the queue at the switch is full, the whole packet is dropped.

TCP is simulated as far as it affects the time of a sum: a window that grows until packets are lost, like cubic's on
short paths (RFC 9438, section 4.3), retransmission once a later packet has been acknowledged or after a timeout,
in-order delivery, and pacing. Acknowledgements never queue.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from reduction.pacing import BUSY_STEP_S, Sent, burst_bytes

from benchmarks.lab.traffic import SEGMENT_BYTES
from reducer.planner.formulas import OVERHEAD

#: Congestion window of a new connection, and of one that was idle.
WINDOW_FIRST = 10 * SEGMENT_BYTES
#: Factor by which losses reduce a window, and the number of segments by which it then grows per round trip.
WINDOW_LEFT, WINDOW_GROWTH = 0.7, 0.53
#: The minimum retransmission timeout, which the product sets.
TIMEOUT_S = 0.02
#: Latency in seconds from one end of an idle link to the other, without the bytes' own time.
HOP_S = 50e-6


class Clock:
    """Future events by time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Schedule an event at a time, but not before now."""
        heapq.heappush(self._events, (max(time, self.now), next(self._count), event))

    def step(self) -> bool:
        """Run the next event, and return whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


@dataclass(slots=True)
class Bucket:
    """One direction of a link with `rate` bytes per second. `burst` bytes may pass immediately after a pause."""

    rate: float
    burst: float
    #: Maximum waiting bytes.
    queue: float
    #: When the bytes so far will have passed at the rate.
    due: float = 0.0

    def room_at(self, nbytes: float) -> float:
        """Return when this many bytes fit into the queue."""
        return self.due - max(0.0, self.queue - nbytes) / self.rate

    def pass_at(self, nbytes: float, now: float) -> float:
        """Accept bytes that arrive now, and return when they will have passed."""
        self.due = max(self.due, now - self.burst / self.rate) + nbytes / self.rate
        return max(now, self.due)


@dataclass(slots=True)
class Host:
    """A machine with a link."""

    name: str
    up: Bucket
    down: Bucket
    #: Size of TCP's packets at any pace (measured on Linux 6.18, with round trips of less than 0.5 ms).
    packet_bytes: int = 64 << 10


@dataclass(slots=True, eq=False)
class _Packet:
    """Bytes of a connection in flight."""

    start: int
    stop: int
    left_at: float
    is_lost: bool = False

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def segments(self) -> int:
        return -(-self.nbytes // SEGMENT_BYTES)


class Connection:
    """One direction of a TCP connection.

    Args:
        clock: clock of the simulation.
        source: sending host.
        target: receiving host; if it is the same, there is no link in between.
        delay_s: one-way delay of the path, without the links' own time.
    """

    def __init__(self, clock: Clock, source: Host, target: Host, delay_s: float = 0.0) -> None:
        self._clock, self._source, self._target = clock, source, target
        self._delay_s = delay_s + HOP_S
        #: Maximum payload bytes per second.
        self.pace = math.inf
        #: Messages that have not arrived, each with its end and the callback for its arrival.
        self._messages: deque[tuple[int, Callable[[], None]]] = deque()
        #: Number of bytes that were passed in, were sent, and have arrived in order.
        self._given = self._next = self._arrived = 0
        #: Parts that have arrived after a gap, as start and stop.
        self._beyond: dict[int, int] = {}
        self._flight: deque[_Packet] = deque()
        self._flight_bytes = 0
        #: Parts to retransmit.
        self._again: deque[tuple[int, int]] = deque()
        self._window, self._threshold = float(WINDOW_FIRST), math.inf
        #: When the window was last reduced. Losses of packets that left earlier are accounted for.
        self._reduced_at = -math.inf
        #: The window and its threshold before that.
        self._before = self._window, self._threshold
        self._rtt_s = 2 * self._delay_s
        #: When the pace allows the next packet, and whether an event is scheduled for that time.
        self._free_at, self._is_waiting = 0.0, False
        #: When the timeout began, and whether an event is scheduled for its end.
        self._heard_at, self._has_timer = 0.0, False
        self._segments = self._lost = 0
        #: In the kernel's ticks, when it became busy, None if it is idle, and for how long it was busy before.
        self._busy_since: int | None = None
        self._busy_ticks = 0

    @property
    def sent(self) -> Sent:
        """Totals of the sent data."""
        busy = self._busy_ticks + (self._ticks - self._busy_since if self._busy_since is not None else 0)
        return Sent(self._arrived, self._segments, self._lost, busy * BUSY_STEP_S)

    @property
    def _ticks(self) -> int:
        return int(self._clock.now / BUSY_STEP_S)

    def send(self, nbytes: int, arrive: Callable[[], None]) -> None:
        """Send a message, and call `arrive` when it has arrived in order."""
        if self._source is self._target:  # loopback
            self._clock.at(self._clock.now + HOP_S, arrive)
            return
        if self._given == self._arrived and self._clock.now > self._heard_at + self._timeout_s:
            self._threshold = max(self._threshold, 0.75 * self._window)
            self._window = min(self._window, WINDOW_FIRST)
        self._given += max(nbytes, 1)
        self._messages.append((self._given, arrive))
        if self._busy_since is None:
            self._busy_since = self._ticks
        self._fill()

    @property
    def _timeout_s(self) -> float:
        return self._rtt_s + TIMEOUT_S

    def _fill(self) -> None:
        """Send as much as the window and the pace allow."""
        while self._again or self._next < self._given:
            is_new = not self._again
            room = int(self._window) - self._flight_bytes
            if is_new:
                largest = min(self._source.packet_bytes, burst_bytes(self.pace) or math.inf)
                size = int(min(largest, self._given - self._next))
                # Like Linux, wait rather than send a small part of what the window allows.
                start, stop = self._next, self._next + (min(size, room) if 3 * room >= self._window else size)
            else:
                start, stop = self._again[0]
            if self._flight and stop - start > room:
                return
            if self._free_at > self._clock.now:
                if not self._is_waiting:
                    self._is_waiting = True
                    self._clock.at(self._free_at, self._on_free)
                return
            paced_s = (stop - start) / self.pace
            # Linux credits up to half of it if the packet could have left earlier (tcp_update_skb_after_send).
            self._free_at = self._clock.now + paced_s - min(self._clock.now - self._free_at, paced_s / 2)
            if is_new:
                self._next = stop
            else:
                self._again.popleft()
            self._pass(_Packet(start, stop, self._clock.now))
            # The packet waits for room in the queue of its own host, and the next packet waits for this one.
            self._free_at = max(self._free_at, self._source.up.room_at(0))

    def _on_free(self) -> None:
        self._is_waiting = False
        self._fill()

    def _pass(self, packet: _Packet) -> None:
        if not self._flight:
            self._heard_at = packet.left_at
        self._flight.append(packet)
        self._flight_bytes += packet.nbytes
        self._segments += packet.segments
        if not self._has_timer:
            self._has_timer = True
            self._clock.at(self._heard_at + self._timeout_s, self._on_timer)
        passed_at = self._source.up.pass_at(packet.nbytes * OVERHEAD, packet.left_at)
        self._clock.at(passed_at + self._delay_s, lambda: self._on_switch(packet))

    def _on_switch(self, packet: _Packet) -> None:
        nbytes, now = packet.nbytes * OVERHEAD, self._clock.now
        if self._target.down.room_at(nbytes) <= now:
            self._clock.at(self._target.down.pass_at(nbytes, now), lambda: self._on_received(packet))

    def _on_received(self, packet: _Packet) -> None:
        self._beyond[packet.start] = packet.stop
        while self._arrived in self._beyond:
            self._arrived = self._beyond.pop(self._arrived)
        self._clock.at(self._clock.now + self._delay_s, lambda: self._on_acknowledged(packet))
        while self._messages and self._messages[0][0] <= self._arrived:
            self._messages.popleft()[1]()

    def _on_acknowledged(self, packet: _Packet) -> None:
        self._heard_at = self._clock.now
        self._rtt_s = self._clock.now - packet.left_at
        if packet.is_lost:  # it was only late, which Linux detects (tcp_try_undo_loss)
            self._lost -= packet.segments
            if (part := (packet.start, packet.stop)) in self._again:
                self._again.remove(part)
            self._window, self._threshold = map(max, self._before, (self._window, self._threshold))
            return
        if 2 * self._flight_bytes >= self._window:
            is_full = self._window >= self._threshold
            self._window += packet.nbytes * (WINDOW_GROWTH * SEGMENT_BYTES / self._window if is_full else 1)
        while self._flight[0] is not packet:  # packets do not overtake each other
            self._lose(WINDOW_LEFT)
        self._flight.popleft()
        self._flight_bytes -= packet.nbytes
        if self._arrived == self._given and not self._flight and not self._again:
            assert self._busy_since is not None
            self._busy_ticks += self._ticks - self._busy_since
            self._busy_since = None
        self._fill()

    def _on_timer(self) -> None:
        if self._flight and self._clock.now >= self._heard_at + self._timeout_s:
            self._heard_at = self._clock.now
            while self._flight:
                self._lose(0.0)
            self._fill()
        self._has_timer = bool(self._flight)
        if self._has_timer:
            self._clock.at(self._heard_at + self._timeout_s, self._on_timer)

    def _lose(self, window_left: float) -> None:
        """Schedule the first packet in flight for retransmission, and reduce the window by a factor."""
        packet = self._flight.popleft()
        packet.is_lost = True
        self._flight_bytes -= packet.nbytes
        self._lost += packet.segments
        self._again.append((packet.start, packet.stop))
        if packet.left_at >= self._reduced_at:
            self._reduced_at = self._clock.now
            self._before = self._window, self._threshold
            self._threshold = max(WINDOW_LEFT * self._window, 2 * SEGMENT_BYTES)
            self._window = max(window_left * self._window, 2 * SEGMENT_BYTES)
