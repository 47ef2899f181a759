"""The metrics of one process for Prometheus, read from plain counters at each scrape.

docs/operating.md lists them. Nothing here is called per chunk. The event loop only copies the counters,
and the thread that serves the scrape turns them into series.
"""

from __future__ import annotations

import asyncio
import platform
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from reduction import __version__
from reduction.model import PROTOCOL_VERSION

from reducer.core.histogram import BOUNDS, Histogram
from reducer.core.totals import OTHER, JobLabel, JobTotals
from reducer.engine import Engine
from reducer.transports.outbox import Path

#: Timeout of a scrape for the engine's loop, in seconds.
ANSWER_S = 5.0
#: Labels of per-job metrics. Prometheus drops empty labels.
_JOB = ("training_job", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of one process's metrics."""

    engine: Engine
    #: Returns the paths to workers whose data uses TCP. Called on the loop's thread.
    paths: Callable[[], list[Path]]
    #: Returns the expiry of certificates in seconds since 1970, by their kind. Called on any thread.
    certificate_expiry: Callable[[], Mapping[str, float]] = dict
    #: Rate of the host's link in its slower direction; 0 if it is not known.
    link_bytes_per_s: float = 0.0


@dataclass(slots=True)
class _Counters:
    """A copy of all counters at one moment."""

    jobs: list[tuple[JobLabel, JobTotals, list[tuple[str, float]]]]
    #: Connected ranks and all ranks of the present jobs.
    ranks: list[tuple[JobLabel, int, int]]
    paths: list[Path]
    outcomes: Counter[str]
    joins: Counter[str]
    errors: Counter[str]
    loop_lag: Histogram
    #: Gauges by name, with their descriptions.
    gauges: list[tuple[str, str, float]]


class EngineCollector(Collector):
    """Collector that runs on the calling thread. The engine's loop takes the snapshot."""

    def __init__(self, sources: Sources, loop: asyncio.AbstractEventLoop) -> None:
        self._sources = sources
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values; after the loop's end only the build info.

        Raises:
            TimeoutError: the loop has not answered for ANSWER_S.
        """
        yield _build_info()
        if not self._loop.is_running():
            return
        copying = asyncio.run_coroutine_threadsafe(self._copy(), self._loop)
        try:
            counters = copying.result(ANSWER_S)
        except TimeoutError:
            copying.cancel()
            raise
        yield from _of_jobs(counters)
        yield from _of_paths(counters)
        yield from _of_process(counters)
        yield from self._of_machine()

    async def _copy(self) -> _Counters:
        engine = self._sources.engine
        jobs, totals = engine.jobs, engine.jobs.totals
        present = list(jobs.by_name.values())
        open_slots = sum(len(job.slots) for job in present)
        return _Counters(
            jobs=[(label, each.copy(), each.worst()) for label, each in totals.by_label.items()],
            ranks=[(job.label, job.present_ranks, job.world_size) for job in present],
            paths=self._sources.paths(),
            outcomes=Counter(totals.jobs),
            joins=Counter(totals.joins),
            errors=Counter(engine.errors),
            loop_lag=engine.loop_lag.copy(),
            gauges=[
                ("streams", "Streams that have joined", len(jobs.streams)),
                ("live_jobs", "Jobs at this moment", len(present)),
                ("open_slots", "Chunks that wait for contributions", open_slots),
                ("memory_reserved_bytes", "Bytes promised to jobs", jobs.memory_reserved_bytes),
                ("memory_limit_bytes", "Most bytes that may be promised", jobs.memory_limit_bytes),
                ("draining", "1 while stopping", int(jobs.is_draining)),
            ],
        )

    def _of_machine(self) -> Iterator[Metric]:
        rate = self._sources.link_bytes_per_s
        if rate:
            text = "Rate of the host's link in its slower direction, as set by --link"
            yield GaugeMetricFamily("reducer_link_rate_bytes_per_second", text, rate)
        expiry = GaugeMetricFamily(
            "reducer_certificate_expiry_timestamp_seconds",
            "When the first certificate of a file expires, in seconds since 1970",
            labels=["certificate"],
        )
        for name, when_s in self._sources.certificate_expiry().items():
            expiry.add_metric([name], when_s)
        yield expiry


def _build_info() -> Metric:
    # Without these build optimisations, CPython takes a quarter to two fifths more time.
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    labels = {
        "version": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "python": platform.python_version(),
        "optimized": str(optimized).lower(),
    }
    info = GaugeMetricFamily("reducer_build_info", "1, for its labels", labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


def _of_jobs(counters: _Counters) -> Iterator[Metric]:
    received = _counter("received_bytes", "Payload bytes of pushes", *_JOB, "plane")
    sent = _counter("sent_bytes", "Payload bytes of results", *_JOB, "plane")
    chunks = _counter("chunks", "Chunks summed", *_JOB)
    collectives = _counter("collectives", "Collectives whose results every rank holds", *_JOB)
    epochs = _counter("epochs", "Configurations that rank 0 has made", *_JOB)
    waits = _histogram("chunk_wait_seconds", "From a chunk's first push to its last", *_JOB)
    reduces = _histogram(
        "chunk_reduce_seconds",
        "From a chunk's last push until its result was handed to the last connection",
        *_JOB,
    )
    stragglers = _counter(
        "straggler_seconds", "Time in which a chunk waited for this rank and for no other", *_JOB, "rank"
    )
    for label, totals, worst in counters.jobs:
        for plane, traffic in totals.traffic.items():
            received.add_metric([*label, plane], traffic.received_bytes)
            sent.add_metric([*label, plane], traffic.sent_bytes)
        chunks.add_metric(label, sum(totals.chunk_waits.counts))
        collectives.add_metric(label, totals.collectives)
        epochs.add_metric(label, totals.epochs)
        _add(waits, label, totals.chunk_waits)
        _add(reduces, label, totals.chunk_reduces)
        for rank, seconds in worst:
            stragglers.add_metric([*label, rank], seconds)
    yield from (received, sent, chunks, collectives, epochs, waits, reduces, stragglers)
    connected = _gauge("job_ranks", "Ranks of a job that are connected", *_JOB)
    wanted = _gauge("job_world_size", "Ranks that a job has", *_JOB)
    for name, now, size in _sums(counters.ranks):
        connected.add_metric(name, now)
        wanted.add_metric(name, size)
    yield from (connected, wanted)


def _sums(ranks: Iterable[tuple[JobLabel, int, int]]) -> Iterator[tuple[JobLabel, int, int]]:
    """Add up the jobs that share a label, which are those without a name."""
    sums: dict[JobLabel, tuple[int, int]] = {}
    for label, connected, size in ranks:
        before = sums.get(label, (0, 0))
        sums[label] = before[0] + connected, before[1] + size
    yield from ((label, *values) for label, values in sums.items())


def _of_paths(counters: _Counters) -> Iterator[Metric]:
    """Yield the kernel's statistics of the connections by host: total retransmissions and longest round trip."""
    retransmits: Counter[tuple[str, ...]] = Counter()
    rtts: dict[tuple[str, ...], float] = {}
    hosts = {label: totals.retransmits.keys() for label, totals, _ in counters.jobs}
    for label, totals, _ in counters.jobs:
        retransmits.update({(*label, host): count for host, count in totals.retransmits.items()})
    for owner, rtt_s, count in counters.paths:
        host = owner.host if owner.host in hosts.get(owner.label, ()) else OTHER
        retransmits[*owner.label, host] += count
        rtts[*owner.label, host] = max(rtt_s, rtts.get((*owner.label, host), 0.0))
    lost = _counter(
        "link_retransmits",
        "Packets to a worker's host that were lost and retransmitted over TCP",
        *_JOB,
        "host",
    )
    for key, count in retransmits.items():
        lost.add_metric(key, count)
    rtt = _gauge("link_rtt_seconds", "Longest smoothed round trip to a worker's host over TCP", *_JOB, "host")
    for key, seconds in rtts.items():
        rtt.add_metric(key, seconds)
    yield from (lost, rtt)


def _of_process(counters: _Counters) -> Iterator[Metric]:
    for name, text, label, counts in (
        ("jobs", "Jobs that are over, by how they ended", "outcome", counters.outcomes),
        ("joins", "Joins by their result", "result", counters.joins),
        ("errors", "Streams closed with an error", "error", counters.errors),
    ):
        family = _counter(name, text, label)
        for value, count in counts.items():
            family.add_metric([value], count)
        yield family
    lag = _histogram("loop_lag_seconds", "How much later than it should the event loop ran a timer")
    _add(lag, (), counters.loop_lag)
    yield lag
    for name, text, gauge in counters.gauges:
        yield GaugeMetricFamily(f"reducer_{name}", text, gauge)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"reducer_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"reducer_{name}", text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"reducer_{name}", text, labels=labels)


def _add(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    buckets, total = [], 0
    for bound, count in zip((*(f"{bound:g}" for bound in BOUNDS), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(list(labels), buckets, histogram.sum_s)
