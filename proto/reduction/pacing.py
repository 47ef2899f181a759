"""Pace the senders of a job as fast as the links allow without packet loss.

n ranks share the link of a reducer, and a job's k reducers share the link of a rank. A switch port buffers about a
millisecond of its rate, so the windows of that many connections overflow it whatever each of them does alone, and
every loss stalls all ranks. Connections that are paced to their shares of the link fill it without a queue. The rate
of the links is unknown, so it is found from losses, as in TCP. But the connections of a job share one rate, R bytes
of every collective per second, because the slowest one decides for all. The connection between a rank and a reducer
that owns the part s of every collective is paced to s R in both directions.

Each rank and each reducer derives its own rate from the losses of its connections, and sends it to the others
(`LinkRate`). The lowest one is R.

    unpaced    nothing was lost so far, or not enough to matter      left at the first losses
    starting   no losses: grow fast                                  left at the next losses
    paced      losses: back off. No losses: grow fast to just below  never
               the rate of the last losses, slowly past it, and then
               fast again, because the links carry more now

This has the shape of CUBIC (RFC 9438): concave below the last maximum, flat near it, convex beyond.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

#: Loss fraction of an interval above which a sender backs off. Below it the rate stays.
LOSS_MAX = 0.002
#: Usual back-off factor at losses, and the lowest factor if links carry even less.
BACK_OFF, BACK_OFF_MOST = 0.95, 0.5
#: If a rate has fallen below this fraction and losses have not halved, the path itself loses packets.
IN_VAIN = 0.7
#: Growth per interval until links are full, below the rate of the last losses, and near it.
GROWTH_START, GROWTH_FAST, GROWTH_SLOW = 1.2, 1.05, 1.005
#: Resolution in seconds of Linux's busy time of a connection, which is the clock tick at CONFIG_HZ=250.
BUSY_STEP_S = 0.004
#: In the starting phase a rate does not grow past this multiple of the achieved rate.
START_MAX = 1.5
#: A rate is near that of the last losses if it is within this fraction of it.
NEAR = 0.03
#: A rate does not grow past that of the last losses if less than this fraction of it was used.
USED_MIN = 0.85
#: A sender's own rate is at most this multiple of the others', or its growth factor if that is larger. The others' may
#: have grown since they reported it.
SLACK = 1.15
#: Lowest rate in bytes per second, so that a job makes progress whatever senders report.
RATE_LEAST = 125_000.0
#: Rate in bytes per second that no link reaches; it removes the pacing of a connection.
UNPACED = 1e15
#: Number of intervals whose best one shows the capacity of the links, because there may be nothing to send in some.
INTERVALS = 4
#: Packet size of a paced connection: the bytes of BURST_S seconds, but at least BURST_BYTES_LEAST. From
#: BURST_BYTES_MOST on, Linux decides and uses packets of 64 KiB.
BURST_S, BURST_BYTES_LEAST, BURST_BYTES_MOST = 0.002, 24 << 10, 48 << 10
#: Minimum number of segments in an interval; fewer say nothing about losses.
SEGMENTS_MIN = 100
#: Longest interval, in seconds. If it has fewer segments, it counts only if none of them was lost, so that a low rate
#: can grow.
INTERVAL_S = 0.1
#: An interval with more busy seconds than this does not describe the current state of the links.
INTERVAL_S_MAX = 0.2


def burst_bytes(bytes_per_s: float) -> int:
    """Return the maximum packet size in bytes for a connection of that pace; 0 lets Linux decide.

    A network card sends all segments of a packet back to back. By default Linux makes packets of 64 KiB at any pace if
    the round trip is below 0.5 ms, and of a millisecond's bytes if it is long (tcp_tso_autosize in
    net/ipv4/tcp_output.c). A switch port buffers about a millisecond of its rate, which is what all connections through
    it send together in a millisecond. Packets of two milliseconds rarely overflow it, because they rarely all arrive
    at the same time, and they need half as many system calls.
    """
    burst = max(BURST_BYTES_LEAST, int(min(bytes_per_s, 1e12) * BURST_S))
    return burst if burst < BURST_BYTES_MOST else 0


class Sent(NamedTuple):
    """Totals of a connection's sent data."""

    #: Bytes that the peer has acknowledged.
    acked_bytes: int = 0
    #: TCP segments with data.
    segments: int = 0
    #: Segments that were lost.
    lost: int = 0
    #: Seconds during which data waited to be sent or acknowledged; 0 if the kernel does not report it.
    busy_s: float = 0.0


class Pacing:
    """The rate of one sender: a rank, or a reducer in one job."""

    def __init__(self) -> None:
        #: Bytes of every collective per second that this sender's connections carry; infinite if unpaced.
        self.own = math.inf
        #: The lowest rate of other senders.
        self.others = math.inf
        #: The rate of the last losses; infinite while unknown.
        self._ceiling = math.inf
        self._achieved: deque[float] = deque(maxlen=INTERVALS)
        #: Loss fraction above which the sender backs off.
        self._tolerated = LOSS_MAX
        #: The rate and the loss fraction when the current, uninterrupted losses began.
        self._losing_since: tuple[float, float] | None = None
        self._is_settling = False
        self._before: dict[int, Sent] = {}
        #: When the current interval began.
        self._began_at = -math.inf

    @property
    def rate(self) -> float:
        """The rate to send at."""
        return max(min(self.own, self.others), RATE_LEAST)

    def expect(self, rate: float) -> None:
        """Start at a given rate. Losses, or their absence, still change it."""
        if math.isinf(self.own):
            self.own = self._ceiling = rate

    def hear(self, rates: Collection[float]) -> None:
        """Accept the rates that other senders have reported."""
        self.others = min(rates, default=math.inf)

    def look(self, sent: Mapping[int, Sent], share: float, now: float) -> None:
        """Adapt the rate to the data that the connections have sent in this interval, if there is enough of it.

        Args:
            sent: totals of each connection, keyed by a number that is never reused.
            share: the connections' total share of every collective.
            now: in seconds.
        """
        if not sent:  # without connections nothing can be lost
            self.own = math.inf
        if now <= self._began_at:
            return  # no time has passed, because a process that was stopped catches up with its ticks
        parts = [(new, self._before.get(key, new)) for key, new in sent.items()]
        segments = sum(new.segments - old.segments for new, old in parts)
        lost = sum(max(0, new.lost - old.lost) for new, old in parts)
        acked = sum(new.acked_bytes - old.acked_bytes for new, old in parts)
        active_s = now - self._began_at
        if any(new.busy_s for new, _ in parts):
            # A burst is shorter than an interval, and its last packets may fall into the next one.
            busy_s = max(new.busy_s - old.busy_s for new, old in parts)
            active_s = min(active_s, busy_s + BUSY_STEP_S)
        is_same = sent.keys() == self._before.keys()
        if is_same and active_s <= INTERVAL_S and 0 <= segments < SEGMENTS_MIN:
            return  # the interval continues
        self._before, self._began_at = dict(sent), now
        if active_s <= INTERVAL_S_MAX and (segments >= SEGMENTS_MIN or (segments > 0 and not lost)):
            self._adapt(acked / active_s / share, lost / segments)

    def _adapt(self, achieved: float, loss: float) -> None:
        self._achieved.append(achieved)
        if loss > self._tolerated:
            # Losses from before the rate was lowered may show up to a retransmission timeout later.
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
            # If others are paced by now, these losses are from before that.
            if not math.isinf(self.others):
                self.own = max(self.own, self.others)
        elif achieved >= USED_MIN * rate:
            self._ceiling = rate
            self.own = BACK_OFF * rate
            before, at_first = self._losing_since = self._losing_since or (rate, loss)
            # Slowing down did not help, so something other than this job fills the queue.
            if self.own < IN_VAIN * before and loss > at_first / 2:
                self._tolerated = 2 * loss
                self.own, self._losing_since = before, None
        else:  # other traffic uses part of the links, or they have become slower
            if math.isinf(self._ceiling):
                self._ceiling = achieved
            self.own = max(BACK_OFF_MOST * rate, BACK_OFF * achieved)
