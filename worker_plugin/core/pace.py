"""How far pushes may run ahead of results, and how large a chunk should be: worked out from what the links do.

What is under way must fill the path and no more. By Little's law, bytes under way = throughput x latency, so
holding the latency of a push (until its result is back) at a target holds the queues at a fraction of a
second of the link's rate, whatever that rate, the number of ranks or of reducers: enough that pushes and
results overlap, and little enough for a switch that buffers a few milliseconds. More only builds queues: when
those overflow, lost tails wait for TCP's 200 ms timer, and throughput collapses (measured: n=8 at 200 Mbit/s,
2 x 32 KiB per reducer 183 Mbit/s, 2 x 64 KiB 74; CONTRIBUTING.md).

Only pushes that a result triggered are measured. Others wait for ranks that are late, which is no queue.
"""

from __future__ import annotations

from collections import deque

from reduction import layout

#: The latency that is aimed at, on top of the path's own, in seconds.
TARGET_S = 0.006
#: Chunks under way at the target.
CHUNKS = 3
#: Smaller chunks cost more CPU than they help, larger ones the caches.
CHUNK_BYTES_LEAST = 32 * layout.KIB
CHUNK_BYTES_MOST = layout.MIB
#: The grid before anything was measured.
CHUNK_BYTES_FIRST = 64 * layout.KIB
#: Bytes of results that a rate is taken from, and how many rates make a choice.
RATE_BYTES = 256 * layout.KIB
RATES = 8
#: The most that one round may change the credit by.
SHRINK, GROW = 0.5, 1.25


class Pace:
    """The credit of one stream in one epoch; between one chunk and what the reducer granted."""

    def __init__(self, chunk_bytes: int, granted_bytes: int, rtt_s: float) -> None:
        self.credit_bytes = min(granted_bytes, 2 * chunk_bytes)
        #: Payload bytes per second, each over RATE_BYTES without a pause; the latest ones.
        self.rates: deque[float] = deque(maxlen=4 * RATES)
        self._least = chunk_bytes
        self._most = granted_bytes
        self._target_s = TARGET_S + rtt_s
        self._round_bytes = 0
        self._round_latency = 0.0
        self._round_count = 0
        self._stretch_bytes = 0
        self._stretch_at: float | None = None

    def on_result(self, cost: int, latency_s: float | None, now: float) -> None:
        """Take note of a result; its latency is None if no result triggered its push."""
        self._measure_rate(cost, now)
        if latency_s is None:
            return
        self._round_latency += latency_s
        self._round_count += 1
        self._round_bytes += cost
        if self._round_bytes >= self.credit_bytes:
            mean_s = self._round_latency / self._round_count
            change = min(max(self._target_s / max(mean_s, 1e-6), SHRINK), GROW)
            self.credit_bytes = min(max(int(self.credit_bytes * change), self._least), self._most)
            self._round_bytes = self._round_count = 0
            self._round_latency = 0.0

    def on_idle(self) -> None:
        """Nothing is under way: the time until the next result says nothing."""
        self._stretch_at = None

    def _measure_rate(self, cost: int, now: float) -> None:
        if self._stretch_at is None:
            self._stretch_at, self._stretch_bytes = now, 0
            return
        self._stretch_bytes += cost
        if self._stretch_bytes >= RATE_BYTES:
            self.rates.append(self._stretch_bytes / max(now - self._stretch_at, 1e-6))
            self._stretch_at, self._stretch_bytes = now, 0


def chunk_bytes_for(rates: list[float], rtt_s: float) -> int | None:
    """Return the chunk size, a power of two, of which CHUNKS are under way at the target on such streams.

    Args:
        rates: of the streams, in bytes per second. None is returned if there are too few.
        rtt_s: of the path, in seconds.
    """
    if len(rates) < RATES:
        return None
    wanted = sorted(rates)[len(rates) // 2] * (TARGET_S + rtt_s) / CHUNKS
    size = CHUNK_BYTES_LEAST
    while size * 2 <= CHUNK_BYTES_MOST and size * 1.5 < wanted:
        size *= 2
    return size
