"""How far pushes may run ahead of results, and how large a chunk should be, both derived from measurements.

By Little's law, bytes in flight = throughput x latency. So the credit is the best recent rate times a target
latency. The target is long enough for pushes and results to overlap, and short enough for the buffer of a
switch, which holds some milliseconds. A larger credit only builds queues. When a queue overflows, the lost end
of a burst waits for TCP's retransmission timer, and throughput collapses. In that case, and when other ranks
are slow, results take much longer than the target, and the credit shrinks until they no longer do.

After a pause a stream begins with a part of its credit, and each result lets it push twice as much, as in TCP's slow
start. All of it at once would be a burst: the kernel passes one stream's burst on before the next stream's, so ranks
would wait for each other's first chunks as long as a whole credit takes.

docs/decisions/credit.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reduction.limits import CREDIT_BYTES_USUAL, KIB, MIB
from reduction.model import DType

from worker_plugin.core.flow.rate_meter import RateMeter, good_rate

#: Number of chunks in flight when the latency equals the target.
CHUNKS = 4
#: Larger chunks gain nothing, and do not stay in the CPU's caches.
CHUNK_BYTES_USEFUL = MIB
#: Chunk sizes that are not powers of two are multiples of this.
_STEP_BYTES = 8 * KIB
#: The chunk size is chosen once all streams together have at least this many rates.
RATES_NEEDED = 8
#: If results take longer than this multiple of the target, the path is congested and the credit shrinks.
LATENCY_TROUBLE_RATIO = 3.0
#: The target is at least this multiple of the shortest observed latency, but exceeds it by no more than half of the
#: target. With a smaller one, a credit of one chunk could never grow.
LATENCY_FLOOR_RATIO = 1.5
#: The factors by which one round of results changes the credit.
SHRINK, GROW = 0.5, 1.25
#: The part of the credit with which a stream begins after a pause.
OPENING = 0.75


@dataclass(frozen=True, slots=True)
class PlaneTarget:
    """The latency and the chunk sizes that suit a data plane."""

    #: The target latency from a push to its result, in seconds.
    target_s: float
    #: The chunk size before anything has been measured.
    first_chunk_bytes: int
    #: The first chunks of all ranks together have at most this many bytes.
    first_bytes: int
    #: Chunks smaller than this cost more CPU than they gain.
    least_chunk_bytes: int
    #: The smallest chunks on slow streams, whose credit has no room for two of the least size.
    finest_chunk_bytes: int


TCP = PlaneTarget(
    target_s=0.016,
    first_chunk_bytes=64 * KIB,
    first_bytes=256 * KIB,
    least_chunk_bytes=32 * KIB,
    finest_chunk_bytes=16 * KIB,
)
#: On gRPC a message costs several times as much CPU and takes longer, so its chunks are larger.
GRPC = PlaneTarget(
    target_s=0.050,
    first_chunk_bytes=256 * KIB,
    first_bytes=4 * MIB,
    least_chunk_bytes=64 * KIB,
    finest_chunk_bytes=64 * KIB,
)


def target_for(target: PlaneTarget, dtype: DType | None, world_size: int) -> PlaneTarget:
    """Return the plane's target, adapted to a wire dtype and a number of ranks.

    CPU is spent per message, so compressed chunks have more elements each. The first chunks of all ranks meet on
    one reducer's link before its rate is known, so large groups of ranks begin with smaller chunks.
    """
    scale = 1 if dtype is None else dtype.format.chunk_scale
    shared = max(target.first_bytes // world_size // _STEP_BYTES * _STEP_BYTES, target.finest_chunk_bytes)
    first, least, finest = (
        min(scale * nbytes, CHUNK_BYTES_USEFUL)
        for nbytes in (
            min(target.first_chunk_bytes, shared),
            target.least_chunk_bytes,
            target.finest_chunk_bytes,
        )
    )
    return replace(target, first_chunk_bytes=first, least_chunk_bytes=least, finest_chunk_bytes=finest)


class Credit:
    """The credit that suits one stream in one epoch, between one chunk and the reducer's grant.

    Args:
        chunk_bytes: size of a chunk.
        granted_bytes: the reducer's limit.
        target: the data plane's.
        before: that of the previous epoch. If the path is long, this one continues with its findings.
    """

    def __init__(
        self, chunk_bytes: int, granted_bytes: int, target: PlaneTarget, before: Credit | None = None
    ) -> None:
        #: It begins with one chunk, whose latency is that of the path alone.
        self.credit_bytes = chunk_bytes
        #: Number of results received.
        self.results = 0
        self._meter = RateMeter()
        self._chunk_bytes = chunk_bytes
        #: The least credit in chunks. With one chunk in flight, pushes do not overlap results. So the rate is low, and
        #: keeps the credit low, whatever the path carries. We enlarge chunks only if rates call for several.
        self._least_chunks = 1 if chunk_bytes <= target.first_chunk_bytes else 2
        #: Whether the kernel paces the stream. If so, data in flight waits here, and not in a switch's queue.
        self.is_paced = False
        self._most = granted_bytes
        self._target_s = target.target_s
        self._least_latency_s = math.inf
        if before is not None and before.is_long:
            self.credit_bytes = max(chunk_bytes, min(before.credit_bytes, granted_bytes))
            self._least_latency_s = before._least_latency_s
        self._round_bytes = 0
        self._round_latency_s = 0.0
        self._round_count = 0
        #: The credit that results since the last pause have opened.
        self._open_bytes = math.inf

    @property
    def rates(self) -> Sequence[float]:
        """Recent rates of results in payload bytes per second; see RateMeter."""
        return self._meter.rates

    @property
    def usable_bytes(self) -> float:
        """The part of the credit that may be in flight now."""
        return min(self.credit_bytes, self._open_bytes)

    def on_result(self, cost: int, latency_s: float | None, now: float) -> None:
        """Record a result.

        Args:
            cost: the credit that its push took, in bytes.
            latency_s: seconds since its push, if another result triggered that push. Otherwise None, because the time
                may include one in which a rank was late, which says nothing about the path.
            now: the present time.
        """
        self.results += 1
        self._open_bytes += 2 * cost
        self._meter.on_result(cost, now)
        if latency_s is None:
            return
        self._least_latency_s = min(self._least_latency_s, latency_s)
        self._round_latency_s += latency_s
        self._round_count += 1
        self._round_bytes += cost
        if self._round_bytes >= self.credit_bytes:
            self._adapt(self._round_latency_s / self._round_count)
            self._round_bytes = self._round_count = 0
            self._round_latency_s = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the path itself takes so long that the target does not reflect time in queues."""
        return self._target_s < self._least_latency_s < math.inf

    def on_idle(self) -> None:
        """Record that nothing is in flight, so that no burst follows."""
        self._meter.on_pause()
        opening = max(OPENING * self.credit_bytes, self._least_chunks * self._chunk_bytes)
        self._open_bytes = math.inf if self.is_paced or self.is_long else opening

    def _adapt(self, latency_s: float) -> None:
        # A path that takes longer than the target needs more in flight, or the rate would drop round by round. But half
        # of a long round trip is more than queues hold.
        least_s = self._least_latency_s
        least = min((CHUNKS if self.is_paced else self._least_chunks) * self._chunk_bytes, self._most)
        room_s = min((LATENCY_FLOOR_RATIO - 1) * least_s, self._target_s / 2)
        goal_s = max(self._target_s, least_s + room_s)
        if latency_s > LATENCY_TROUBLE_RATIO * goal_s:
            self.credit_bytes = max(int(self.credit_bytes * SHRINK), least)
            return
        grown, most = int(self.credit_bytes * GROW), self._most
        if self.rates:
            rate = good_rate(self.rates)
            most = min(most, max(int(rate * (least_s + room_s)), CREDIT_BYTES_USUAL))
            if not self.is_long or latency_s > least_s + room_s / 2:
                # Something waits on the path, so it is full, or another rank is behind. On a long path, a rank that is
                # some chunks ahead waits for it, or the ranks would never grow their credit together.
                full = int(rate * goal_s) + (2 * self._chunk_bytes if self.is_long else 0)
                ahead = min(self.credit_bytes, CHUNKS * self._chunk_bytes) if self.is_long else 0
                most = min(most, max(full, ahead))
        self.credit_bytes = max(min(grown, most), least)


def chunk_bytes_for(rates: Sequence[float], target: PlaneTarget) -> int | None:
    """Return the chunk size, a power of two, at which about CHUNKS are in flight on such streams.

    If the credit has no room for two chunks of the least size, the chunk size is the whole credit.

    Args:
        rates: of all streams, in bytes per second.
        target: of the data plane.

    Returns:
        Bytes; None if there are too few rates.
    """
    if len(rates) < RATES_NEEDED:
        return None
    credit = int(good_rate(rates) * target.target_s)
    size = target.least_chunk_bytes
    if credit < 2 * size:
        return max(credit // _STEP_BYTES * _STEP_BYTES, target.finest_chunk_bytes)
    while size < CHUNK_BYTES_USEFUL and size * 1.5 * CHUNKS < credit:
        size *= 2
    return size
