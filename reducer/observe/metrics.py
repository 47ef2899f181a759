"""Prometheus metrics, read from the engine at each scrape.

reducer_received_bytes_total   payload of all pushes
reducer_sent_bytes_total       payload of all results
reducer_chunks_total           chunks summed and published
reducer_errors_total{error}    streams closed with an error, by class
reducer_streams                streams that have joined
reducer_jobs                   jobs at this moment
reducer_open_slots             chunks that wait for contributions
reducer_memory_reserved_bytes  reserved by jobs
reducer_memory_limit_bytes     the most that jobs may reserve
reducer_waited_seconds_total{job,rank}  time that chunks of present jobs waited for this rank
reducer_draining               1 while stopping
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reducer.engine import Engine

#: How long a scrape may wait for the engine's loop, in seconds.
ANSWER_S = 5.0


class EngineCollector(Collector):
    """Collects on the metrics server's thread. The engine's loop takes the snapshot."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        if not self._loop.is_running():
            return
        yield from asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop).result(ANSWER_S)

    async def _snapshot(self) -> list[Metric]:
        return list(self._metrics())

    def _metrics(self) -> Iterator[Metric]:
        engine, status = self._engine, self._engine.status()
        yield _counter("received_bytes", "Payload bytes of all pushes", engine.received_bytes)
        yield _counter("sent_bytes", "Payload bytes of all results", engine.sent_bytes)
        yield _counter("chunks", "Chunks summed and published", engine.chunks)
        errors = CounterMetricFamily("reducer_errors", "Streams closed with an error", labels=["error"])
        for name, count in engine.errors.items():
            errors.add_metric([name], count)
        yield errors
        yield _gauge("streams", "Streams that have joined", len(engine.jobs.streams))
        yield _gauge("jobs", "Jobs at this moment", len(status.jobs))
        open_slots = sum(job.open_slots for job in status.jobs)
        yield _gauge("open_slots", "Chunks that wait for contributions", open_slots)
        waited = CounterMetricFamily(
            "reducer_waited_seconds", "Time that chunks waited for the last rank", labels=["job", "rank"]
        )
        for job in status.jobs:
            for last_rank in job.last:
                waited.add_metric([job.title, str(last_rank.rank)], last_rank.waited_s)
        yield waited
        yield _gauge("memory_reserved_bytes", "Bytes promised to jobs", status.memory_reserved_bytes)
        yield _gauge("memory_limit_bytes", "Most bytes that may be promised", status.memory_limit_bytes)
        yield _gauge("draining", "1 while stopping", int(status.draining))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"reducer_{name}", text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"reducer_{name}", text, value)
