"""Simulated links: token buckets with a queue in front of them, at both ends of every host's link.

A message is cut into packets. A packet waits for the bucket of the sender's link, then for that of
the receiver's, first in, first out. Nothing is ever lost: a queue that became longer than the real
one would drop packets, and TCP's answer to that is not simulated, so it is only counted.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from reducer.planner.formulas import OVERHEAD

#: Bytes of a packet, small against a chunk: with whole chunks as packets, sending and receiving
#: would not overlap.
PACKET_BYTES = 16 << 10
#: Seconds from one end of an idle link to the other, beside the bytes' own time.
HOP_S = 50e-6


class Clock:
    """The events that are to come, by time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Have something happen at a time, not before now."""
        heapq.heappush(self._events, (max(time, self.now), next(self._count), event))

    def step(self) -> bool:
        """Let the next event happen; return whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


@dataclass(slots=True)
class Bucket:
    """One direction of a link: `rate` bytes per second, of which `burst` bytes may pass at once after a pause."""

    rate: float
    burst: float
    #: Bytes that may wait; more would be lost.
    queue: float
    #: When the bytes so far are due at the rate.
    due: float = 0.0
    #: The longest queue so far, in bytes.
    longest: float = 0.0

    def pass_at(self, nbytes: float, now: float) -> float:
        """Take bytes that arrive now; return when they have passed."""
        self.due = max(self.due, now - self.burst / self.rate) + nbytes / self.rate
        self.longest = max(self.longest, (self.due - now) * self.rate)
        return max(now, self.due)


@dataclass(slots=True)
class Host:
    """A machine with a link."""

    name: str
    up: Bucket
    down: Bucket

    @property
    def is_overrun(self) -> bool:
        """Whether a real link would have lost packets."""
        return any(bucket.longest > bucket.queue for bucket in (self.up, self.down))


class Network:
    """Hosts, and the messages between them.

    Args:
        clock: of the simulation.
        delay_s: of every path, one way, beside the links' own time.
    """

    def __init__(self, clock: Clock, delay_s: float = 0.0) -> None:
        self._clock = clock
        self._delay_s = delay_s + HOP_S

    def send(self, source: Host, target: Host, nbytes: int, arrive: Callable[[], None]) -> None:
        """Send a message; `arrive` is called when its last packet is there. Messages between two hosts keep order."""
        if source is target:  # loopback
            self._clock.at(self._clock.now + HOP_S, arrive)
            return
        left = max(nbytes, 1)
        while left > 0:
            size = min(left, PACKET_BYTES)
            left -= size
            sent_at = source.up.pass_at(size * OVERHEAD, self._clock.now)
            last = arrive if left <= 0 else None
            self._clock.at(sent_at + self._delay_s, self._arrival(target, size, last))

    def _arrival(self, target: Host, size: int, last: Callable[[], None] | None) -> Callable[[], None]:
        def packet() -> None:
            received_at = target.down.pass_at(size * OVERHEAD, self._clock.now)
            if last is not None:
                self._clock.at(received_at, last)

        return packet
