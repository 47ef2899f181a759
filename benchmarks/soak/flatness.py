"""The judgement of a soak: whether memory, threads and descriptors of a process stay the same over time."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from benchmarks.lab.procfs import Footprint

MIB = 1 << 20

#: Most growth of resident memory from the second to the last fifth of a run. The allocator keeps
#: memory, which fragments under a random load: processes with a constant heap grew by 14 MiB in
#: three minutes.
RSS_ALLOWANCE_BYTES = 16 * MIB
#: Most growth of the bytes that were allocated and not freed. Changes of 1 MiB were seen.
HEAP_ALLOWANCE_BYTES = 4 * MIB
#: Most additional threads. gRPC's own pool starts one more when it is busy, and ends it minutes
#: later.
THREADS_ALLOWANCE = 2

#: Most additional descriptors of regions of shared memory. Their number follows the sizes of the buffers: medians
#: of two minutes without a trend differed by 57.
REGIONS_ALLOWANCE = 64

#: Least number of samples from which fifths can be made.
SAMPLES_MIN = 10


@dataclass(slots=True)
class Series:
    """The samples of one process."""

    name: str
    seconds: list[float] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    def add(self, seconds: float, footprint: Footprint) -> None:
        """Add a sample."""
        self.seconds.append(seconds)
        self.footprints.append(footprint)

    def between(self, begin: float, end: float) -> list[Footprint]:
        """Return the samples of a part of the time, where 0 is the first sample and 1 the last."""
        first, last = begin * self.seconds[-1], end * self.seconds[-1]
        pairs = zip(self.seconds, self.footprints, strict=True)
        return [footprint for seconds, footprint in pairs if first <= seconds <= last]

    def json(self) -> dict[str, object]:
        """Return the series as JSON, with a list for each quantity."""
        samples = [asdict(footprint) for footprint in self.footprints]
        columns = {name: [sample[name] for sample in samples] for name in samples[0]} if samples else {}
        return {"name": self.name, "seconds": self.seconds, **columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Medians of the second and of the last fifth of a series, and the growth. The first fifth is the warm-up."""

    name: str
    rss_bytes: tuple[float, float]
    pss_bytes: tuple[float, float]
    #: None if the heap is not known.
    heap_bytes: tuple[float, float] | None
    threads: tuple[float, float]
    descriptors: tuple[float, float]
    #: Each quantity that grew, in words; empty if none did.
    grew: tuple[str, ...]
    #: Descriptors of regions of shared memory. Results of before these were counted apart have none.
    regions: tuple[float, float] = (0, 0)


def judge(series: Series, rss_allowance_bytes: float = RSS_ALLOWANCE_BYTES) -> Verdict:
    """Compare the second with the last fifth of the time of a series of at least SAMPLES_MIN samples."""
    count = len(series.footprints)
    if count < SAMPLES_MIN:
        raise ValueError(f"{series.name} has {count} samples, {SAMPLES_MIN} are the least that can be judged")
    early, late = series.between(0.2, 0.4), series.between(0.8, 1.0)

    def medians(quantity: str) -> tuple[float, float]:
        first, last = (
            statistics.median(getattr(footprint, quantity) for footprint in part) for part in (early, late)
        )
        return first, last

    memory = {"RSS": medians("rss_bytes")}
    if series.footprints[0].heap_bytes is not None:
        memory["heap"] = medians("heap_bytes")
    allowed = {"RSS": rss_allowance_bytes, "heap": HEAP_ALLOWANCE_BYTES}
    grew = [
        f"{name} by {(last - first) / MIB:.1f} MiB"
        for name, (first, last) in memory.items()
        if last - first > allowed[name]
    ]
    counts = {quantity: medians(quantity) for quantity in ("threads", "descriptors", "regions")}
    allowed = {"threads": THREADS_ALLOWANCE, "descriptors": 0, "regions": REGIONS_ALLOWANCE}
    grew += [
        f"{name} by {last - first:g}"
        for name, (first, last) in counts.items()
        if last - first > allowed[name]
    ]
    return Verdict(
        name=series.name,
        rss_bytes=memory["RSS"],
        pss_bytes=medians("pss_bytes"),
        heap_bytes=memory.get("heap"),
        threads=counts["threads"],
        descriptors=counts["descriptors"],
        regions=counts["regions"],
        grew=tuple(grew),
    )


HEAD = [
    "process",
    *("RSS MiB", "growth", "PSS MiB", "growth", "heap MiB", "growth"),
    *("threads", "descriptors", "regions", "verdict"),
]


def cells(verdict: Verdict) -> list[str]:
    """Return a row of the table whose head is HEAD."""
    row = [verdict.name]
    for memory in (verdict.rss_bytes, verdict.pss_bytes, verdict.heap_bytes):
        if memory is None:
            row += ["", ""]
        else:
            row += [f"{memory[0] / MIB:.1f}", f"{(memory[1] - memory[0]) / MIB:+.2f}"]
    for first, last in (verdict.threads, verdict.descriptors, verdict.regions):
        row.append(f"{first:g}" if first == last else f"{first:g} to {last:g}")
    return [*row, "grew: " + ", ".join(verdict.grew) if verdict.grew else "flat"]
