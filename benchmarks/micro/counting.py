"""What the metrics cost a reducer: python -m benchmarks.micro.counting

- CPU time of the engine for a tiny chunk of four ranks, as it is and without straggler time and histograms
- how long the event loop is kept by a scrape, and how long its thread takes, for one job and for as many as are kept

Chunks have 64 bytes and sinks do nothing, so that hardly anything but Python is measured. Both kinds of
engine take turns, and the least of all turns counts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from reduction.limits import JOB_TOTALS_MAX, RANK_TOTALS_MAX
from reduction.model import Collective, Configuration, DType, Hello, Join, Member, Push, ReduceOp

from reducer.core.histogram import Histogram
from reducer.core.stragglers import Stragglers
from reducer.core.totals import JobLabel, JobTotals
from reducer.engine import Engine
from reducer.observe.exposition import Exposition
from reducer.observe.metrics import EngineCollector, Sources

RANKS, CHUNKS, TURNS = 4, 2_000, 30
SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 16, 7)


class Sink:
    """A peer that takes everything at once."""

    def on_frame(self, frame: object) -> None:
        """Take a frame."""

    def on_closed(self, error: object) -> None:
        """Learn of the end."""


def chunk_us() -> float:
    """Return the CPU time of the engine for one chunk, in microseconds."""
    engine = Engine(memory_limit_bytes=1 << 30)
    streams = [engine.open(Sink()) for _ in range(RANKS)]
    configuration = Configuration(bytes(16), 1, 1024, (Member("a:1", engine.jobs.incarnation),))
    for rank, stream in enumerate(streams):
        stream.send(Join("job", bytes(16), rank, RANKS, bytes([rank]) * 16, "host", 0, 1 << 16))
    for stream in streams:
        stream.send(Hello(configuration, 0))
    payload = memoryview(bytearray(64))
    pushes = [Push(1, seq, 0, SUM, max(0, seq - 1), payload) for seq in range(CHUNKS)]
    begun = time.process_time()
    for push in pushes:
        for stream in streams:
            stream.send(push)
    return (time.process_time() - begun) / CHUNKS * 1e6


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out straggler time and histograms."""
    with ExitStack() as stack:
        for owner, name in ((Histogram, "add"), (Stragglers, "wait_for")):
            stack.enter_context(patch.object(owner, name, lambda *_: None))
        yield


def scrape_ms(jobs: int) -> tuple[float, float]:
    """Return how long a scrape keeps the event loop, and how long it takes in all, in milliseconds."""
    engine = Engine(memory_limit_bytes=1 << 30)
    for number in range(jobs):
        totals = engine.jobs.totals.by_label[JobLabel(f"job-{number}", "")] = JobTotals()
        totals.straggler_s.update({rank: 1.0 + rank for rank in range(RANK_TOTALS_MAX + 1)})
        totals.on_plane("tcp").received_bytes = 1
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    collector = EngineCollector(Sources(engine=engine, paths=list), loop)
    exposition = Exposition(collector, 0)
    kept, took = [], []
    for _ in range(TURNS):
        begun = time.perf_counter()
        exposition.text()
        took.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        asyncio.run(collector._copy())
        kept.append(time.perf_counter() - begun)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return min(kept) * 1e3, min(took) * 1e3


def main() -> None:
    """Print all."""
    with_us, without_us = [], []
    for _ in range(TURNS):
        with_us.append(chunk_us())
        with uncounted():
            without_us.append(chunk_us())
    print(f"CPU per chunk of {RANKS} ranks: {min(with_us):.1f} us, without counting {min(without_us):.1f} us")
    for jobs in (1, JOB_TOTALS_MAX):
        kept, took = scrape_ms(jobs)
        print(f"a scrape with {jobs} jobs: keeps the loop for {kept:.2f} ms at most, takes {took:.1f} ms")


if __name__ == "__main__":
    main()
