"""How fast the senders of a job send: as fast as the links carry it without losing packets.

n ranks meet on the link of a reducer, and its k reducers meet on the link of a rank. The port of a switch holds
about a millisecond of its rate, so the windows of that many connections overflow it, whatever each of them does
alone, and every loss stalls all ranks. Connections that are paced to their shares of the link fill it without a
queue. Nobody knows the rate of the links, so it is found as TCP finds it, by losses. But the connections of a job
share one rate, R bytes of every collective per second, because the slowest one decides for all of them: the
connection between a rank and a reducer that owns the part s of every collective is paced to s R, both ways.

Each rank and each reducer finds a rate of its own from what its connections lose, and tells the others
(`LinkRate`). The lowest one is R.

    unpaced    nothing was lost so far, or not enough to matter      left at the first losses
    starting   no losses: grow fast                                  left at the next losses
    paced      losses: back off. No losses: grow fast to just below  never
               the rate of the last losses, slowly past it, and then
               fast again, because the links carry more now

That is CUBIC in shape (RFC 9438): concave below the last maximum, flat near it, convex beyond.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

#: Part of an interval's segments whose loss makes a sender back off. If less is lost its rate stays.
LOSS_MAX = 0.002
#: The factor by which losses lower the rate, and by which it falls at most if links carry still less.
BACK_OFF, BACK_OFF_MOST = 0.95, 0.5
#: If a rate has fallen to less than this part and losses to no less than half, the path itself loses packets.
IN_VAIN = 0.7
#: Growth per interval until links are full, below the rate of the last losses, and near it.
GROWTH_START, GROWTH_FAST, GROWTH_SLOW = 1.2, 1.05, 1.005
#: Resolution at which Linux counts how long a connection was busy, in seconds: its clock tick at CONFIG_HZ=250.
BUSY_STEP_S = 0.004
#: While starting a rate does not grow past this multiple of what was carried.
START_MAX = 1.5
#: Near means within this part of the rate of the last losses.
NEAR = 0.03
#: A rate does not grow past that of the last losses if less than this part of it was used.
USED_MIN = 0.85
#: A sender's own rate is at most this multiple of the others', or its growth if that is more: they may have grown since
#: they told it.
SLACK = 1.15
#: No rate is lower, in bytes per second: whatever senders tell, a job goes on.
RATE_LEAST = 125_000.0
#: More than any link carries, in bytes per second: a connection that was paced is not any more.
UNPACED = 1e15
#: Number of intervals of which the best one says what the links carry: in some there was nothing to send.
INTERVALS = 4
#: What a paced connection hands over as one packet: the bytes of BURST_S seconds, but at least BURST_BYTES_LEAST.
#: From BURST_BYTES_MOST on Linux decides, whose packets have 64 KiB.
BURST_S, BURST_BYTES_LEAST, BURST_BYTES_MOST = 0.002, 24 << 10, 48 << 10
#: Segments that must have been sent before an interval ends: fewer say nothing about losses.
SEGMENTS_MIN = 100
#: Longest interval, in seconds. One with fewer segments counts only if none of them was lost, so that a low rate can
#: grow.
INTERVAL_S = 0.1
#: An interval in which senders were busy for more seconds than this says nothing of the links as they are now.
INTERVAL_S_MAX = 0.2


def burst_bytes(bytes_per_s: float) -> int:
    """Return how many bytes a connection of that pace may hand over as one packet; 0: Linux decides.

    A network card sends all of a packet's segments at once. By itself Linux makes packets of 64 KiB at any pace where
    the round trip is below 0.5 ms, and of a millisecond's bytes where it is long (tcp_tso_autosize in
    net/ipv4/tcp_output.c). The port of a switch holds about a millisecond of its rate, which is what all connections
    that meet there send in a millisecond together. Packets of two milliseconds seldom overflow it, because they
    seldom come all at once, and cost half as many system calls.
    """
    burst = max(BURST_BYTES_LEAST, int(min(bytes_per_s, 1e12) * BURST_S))
    return burst if burst < BURST_BYTES_MOST else 0


class Sent(NamedTuple):
    """What a connection has sent since it began."""

    #: Bytes that the peer has acknowledged.
    acked_bytes: int = 0
    #: Packets with data, as large as the path allows.
    segments: int = 0
    #: Segments that were lost.
    lost: int = 0
    #: How long anything waited to be sent or acknowledged, in seconds; 0 if the kernel does not tell.
    busy_s: float = 0.0


class Pacing:
    """The rate of one sender: a rank, or a reducer in one job."""

    def __init__(self) -> None:
        #: Bytes of every collective per second that this sender's connections carry; infinite: unpaced.
        self.own = math.inf
        #: The lowest rate of other senders.
        self.others = math.inf
        #: The rate at which packets were lost last; infinite while it is not known.
        self._ceiling = math.inf
        self._achieved: deque[float] = deque(maxlen=INTERVALS)
        #: Part of the segments whose loss makes it back off.
        self._tolerated = LOSS_MAX
        #: The rate, and the part that was lost, when losses began that have not stopped since.
        self._losing_since: tuple[float, float] | None = None
        self._is_settling = False
        self._before: dict[int, Sent] = {}
        #: When the present interval began.
        self._began_at = -math.inf

    @property
    def rate(self) -> float:
        """The rate to send at."""
        return max(min(self.own, self.others), RATE_LEAST)

    def expect(self, rate: float) -> None:
        """Begin at a rate that somebody has said; losses, or their absence, still change it."""
        if math.isinf(self.own):
            self.own = self._ceiling = rate

    def hear(self, rates: Collection[float]) -> None:
        """Take the rates that other senders have told."""
        self.others = min(rates, default=math.inf)

    def look(self, sent: Mapping[int, Sent], share: float, now: float) -> None:
        """Adapt the rate to what the connections have sent since the interval began, if that is enough.

        Args:
            sent: of each connection, by a number that no later one has.
            share: part of every collective that goes over each connection, of all of them together.
            now: in seconds.
        """
        if not sent:  # no connection is left that can lose anything
            self.own = math.inf
        if now <= self._began_at:
            return  # no time has passed: a process that was stopped catches up with its ticks
        parts = [(new, self._before.get(key, new)) for key, new in sent.items()]
        segments = sum(new.segments - old.segments for new, old in parts)
        lost = sum(max(0, new.lost - old.lost) for new, old in parts)
        acked = sum(new.acked_bytes - old.acked_bytes for new, old in parts)
        active_s = now - self._began_at
        if any(new.busy_s for new, _ in parts):
            # A burst is shorter than an interval, and its last packets may come in the next one.
            busy_s = max(new.busy_s - old.busy_s for new, old in parts)
            active_s = min(active_s, busy_s + BUSY_STEP_S)
        is_same = sent.keys() == self._before.keys()
        if is_same and active_s <= INTERVAL_S and 0 <= segments < SEGMENTS_MIN:
            return  # the interval goes on
        self._before, self._began_at = dict(sent), now
        if active_s <= INTERVAL_S_MAX and (segments >= SEGMENTS_MIN or (segments > 0 and not lost)):
            self._adapt(acked / active_s / share, lost / segments)

    def _adapt(self, achieved: float, loss: float) -> None:
        self._achieved.append(achieved)
        if loss > self._tolerated:
            # What was lost before the rate was lowered shows up to a retransmission time-out later.
            if not self._is_settling:
                self._back_off(max(self._achieved), loss)
            self._is_settling = not self._is_settling
            return
        self._is_settling = False
        self._losing_since = None
        if not loss:
            self._tolerated = LOSS_MAX
        if loss or math.isinf(self.own):
            return
        growth = 1.0
        if math.isinf(self._ceiling):
            growth = GROWTH_START if self.own < START_MAX * max(self._achieved) else 1.0
        elif self.own < (1 - NEAR) * self._ceiling:
            growth = min(GROWTH_FAST, (1 - NEAR / 2) * self._ceiling / self.own)
        elif self.own < (1 + NEAR) * self._ceiling:
            growth = GROWTH_SLOW
        elif achieved >= USED_MIN * self.rate:
            growth = GROWTH_FAST
        self.own = min(self.own * growth, max(SLACK, growth) * self.others)

    def _back_off(self, achieved: float, loss: float) -> None:
        rate = self.rate
        if math.isinf(self.own):
            self.own = BACK_OFF * achieved
            # If others are paced by now, these losses are of the time before that.
            if not math.isinf(self.others):
                self.own = max(self.own, self.others)
        elif achieved >= USED_MIN * rate:
            self._ceiling = rate
            self.own = BACK_OFF * rate
            before, at_first = self._losing_since = self._losing_since or (rate, loss)
            # Slower did not help, so it is not this job that fills the queue.
            if self.own < IN_VAIN * before and loss > at_first / 2:
                self._tolerated = 2 * loss
                self.own, self._losing_since = before, None
        else:  # something else takes a part of the links, or they are slower now
            if math.isinf(self._ceiling):
                self._ceiling = achieved
            self.own = max(BACK_OFF_MOST * rate, BACK_OFF * achieved)
