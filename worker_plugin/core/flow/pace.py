"""How far pushes may run ahead of results, and how large a chunk should be: worked out from what the links do.

By Little's law, bytes under way = throughput x time under way. So the credit is the best rate that was seen
lately times a time that is enough for pushes and results to overlap, and short enough for a switch that
buffers some milliseconds. More only builds queues: when those overflow, lost tails wait for TCP's 200 ms
timer, and throughput collapses. In that case, and when the others are slow, results take much longer than the
time aimed at, and the credit shrinks until they no longer do. Measured figures: docs/decisions/credit.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reduction.limits import KIB, MIB
from reduction.model import DType

#: Chunks that are under way at the target.
CHUNKS = 4
#: Larger chunks gain nothing and leave the caches.
CHUNK_BYTES_USEFUL = MIB
#: Sizes that are no powers of two are multiples of this.
_STEP_BYTES = 8 * KIB
#: Bytes of results that a rate is taken from; how many rates are kept of a stream, and make a choice of all.
RATE_BYTES = 256 * KIB
RATES_KEPT = 32
RATES_NEEDED = 8
#: Results that take longer than so many times the target mean trouble.
LATENCY_TROUBLE_RATIO = 3.0
#: And never less than so many times the shortest time that a push has taken; with less one chunk would stay one.
LATENCY_FLOOR_RATIO = 1.5
#: How one round of results changes the credit.
SHRINK, GROW = 0.5, 1.25


@dataclass(frozen=True, slots=True)
class PlaneTarget:
    """What suits a data plane."""

    #: How long a push should be under way until its result is back, in seconds.
    target_s: float
    #: The grid before anything was measured,
    first_chunk_bytes: int
    #: and a limit for the first chunks of all ranks together.
    first_bytes: int
    #: Smaller chunks cost more CPU than they help,
    least_chunk_bytes: int
    #: unless they keep chunks from being lost; then this is the limit.
    finest_chunk_bytes: int


TCP = PlaneTarget(
    target_s=0.016,
    first_chunk_bytes=64 * KIB,
    first_bytes=256 * KIB,
    least_chunk_bytes=32 * KIB,
    finest_chunk_bytes=16 * KIB,
)
#: A message costs several times the CPU.
GRPC = PlaneTarget(
    target_s=0.200,
    first_chunk_bytes=512 * KIB,
    first_bytes=4 * MIB,
    least_chunk_bytes=256 * KIB,
    finest_chunk_bytes=256 * KIB,
)


def target_for(target: PlaneTarget, dtype: DType | None, world_size: int) -> PlaneTarget:
    """Return what suits a wire dtype and a number of ranks.

    Messages are what costs, so compressed chunks have more elements each. The first chunks of all ranks meet on the
    link of one reducer before anybody knows what it takes, so many ranks begin with smaller ones.
    """
    wider = 1 if dtype is None else dtype.format.chunk_scale
    shared = max(target.first_bytes // world_size // _STEP_BYTES * _STEP_BYTES, target.finest_chunk_bytes)
    first, least, finest = (
        min(wider * nbytes, CHUNK_BYTES_USEFUL)
        for nbytes in (
            min(target.first_chunk_bytes, shared),
            target.least_chunk_bytes,
            target.finest_chunk_bytes,
        )
    )
    return replace(target, first_chunk_bytes=first, least_chunk_bytes=least, finest_chunk_bytes=finest)


class Pace:
    """The good credit of one stream in one epoch; between one chunk and what the reducer granted."""

    def __init__(self, chunk_bytes: int, granted_bytes: int, target_s: float) -> None:
        #: Begins with one chunk, which shows best how long the path itself takes.
        self.credit_bytes = chunk_bytes
        #: How many have come.
        self.results = 0
        #: Payload bytes per second, each over RATE_BYTES without a pause; the latest ones.
        self.rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._least = chunk_bytes
        self._most = granted_bytes
        self._target_s = target_s
        self._least_latency_s = float("inf")
        self._round_bytes = 0
        self._round_latency_s = 0.0
        self._round_count = 0
        self._stretch_bytes = 0
        self._stretch_at: float | None = None

    def on_result(self, cost: int, latency_s: float | None, now: float) -> None:
        """Take note of a result; its latency is None if no result triggered its push.

        Others wait for ranks that are late, which says nothing about the path.
        """
        self.results += 1
        if self._stretch_at is None:
            self._stretch_at, self._stretch_bytes = now, 0
        else:
            self._stretch_bytes += cost
            if self._stretch_bytes >= RATE_BYTES:
                self.rates.append(self._stretch_bytes / max(now - self._stretch_at, 1e-6))
                self._stretch_at, self._stretch_bytes = now, 0
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

    def on_idle(self) -> None:
        """Nothing is under way: the time until the next result is no rate."""
        self._stretch_at = None

    def _adapt(self, latency_s: float) -> None:
        # A path that is longer than the target needs more under way, or the rate would sink round by round.
        target_s = max(self._target_s, LATENCY_FLOOR_RATIO * self._least_latency_s)
        if latency_s > LATENCY_TROUBLE_RATIO * target_s:
            self.credit_bytes = max(int(self.credit_bytes * SHRINK), self._least)
            return
        best = int(good_rate(self.rates) * target_s) if self.rates else self._most
        self.credit_bytes = max(min(int(self.credit_bytes * GROW), best, self._most), self._least)


def good_rate(rates: Sequence[float]) -> float:
    """Return a rate that the stream can hold: a high one, but not the highest, which a stall before it may explain."""
    return sorted(rates)[len(rates) * 9 // 10]


def chunk_bytes_for(rates: Sequence[float], target: PlaneTarget) -> int | None:
    """Return the chunk size, a power of two, of which about CHUNKS are under way on such streams.

    Where that would be fewer than two of the least size, it is the one chunk that should be under way.
    None is returned if there are too few rates, in bytes per second.
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
