"""What is measured on a stream: how long an empty sum takes, and how many bytes per second come back as sums."""

from __future__ import annotations

import queue
import time

from reduction.model import Collective, DType, Push, ReduceOp, Result

from reducer.doctor.stream import CHUNK_BYTES, Stream

#: Chunks of one collective.
CHUNKS = 64
#: So long a chunk may be under way beyond its least time before fewer bytes are pushed ahead. It is the
#: latency that workers aim at; more would only fill queues, and lose packets of others.
LATENCY_S = 0.016
#: The part of a measurement that does not count.
BEGINNING = 0.2
#: Empty pushes whose answers are timed.
PINGS = 50


class Session(Stream):
    """A stream that measures. All methods block; see `Stream`."""

    def ping(self) -> list[float]:
        """Return the seconds from each of PINGS empty pushes to its result. Call it before `pump`."""
        taken = []
        for seq in range(self.seq, self.seq + PINGS):
            began = time.monotonic()
            self.send(_push(seq, 0, 0, memoryview(b"")))
            self.until(Result)
            taken.append(time.monotonic() - began)
            self.seq = seq + 1
        return taken

    def pump(self, seconds: float) -> float:
        """Push for this many seconds, as fast as sums come back; return bytes per second.

        The beginning, in which TCP finds the rate, does not count.

        Raises:
            ReductionError: the stream ended.
        """
        payload = memoryview(bytearray(CHUNK_BYTES))
        window, under_way, chunk = 4 * CHUNK_BYTES, 0, 0
        pushed_at: queue.SimpleQueue[float] = queue.SimpleQueue()
        began, first, last, least, count = time.monotonic(), 0.0, 0.0, float("inf"), 0
        counts_from = began + seconds * BEGINNING
        while True:
            is_over = time.monotonic() - began >= seconds
            while not is_over and under_way + CHUNK_BYTES <= window:
                pushed_at.put(time.monotonic())
                self.send(_push(self.seq + chunk // CHUNKS, chunk % CHUNKS, CHUNKS, payload))
                under_way, chunk = under_way + CHUNK_BYTES, chunk + 1
            if not under_way:
                break
            self.until(Result)
            last = time.monotonic()
            under_way -= CHUNK_BYTES
            if first:
                count += 1
            elif last >= counts_from:
                first = last
            taken = last - pushed_at.get()
            least = min(least, taken)
            step = CHUNK_BYTES if taken < least + LATENCY_S else -CHUNK_BYTES
            window = min(max(window + step, 2 * CHUNK_BYTES), self.credit)
        self.seq += -(-chunk // CHUNKS)
        return count * CHUNK_BYTES / (last - first) if last > first else 0.0


def _push(seq: int, chunk: int, chunks: int, payload: memoryview) -> Push:
    """Return a push of a collective of `chunks` whole chunks, all zeros."""
    numel = chunks * CHUNK_BYTES // DType.FLOAT32.itemsize
    return Push(1, seq, chunk, Collective(ReduceOp.SUM, DType.FLOAT32, numel, chunks), seq, payload)
