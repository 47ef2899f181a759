"""Whether what a process holds stays the same over time: the judgement of `benchmarks.soak`."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from benchmarks.lab.procfs import Footprint

MIB = 1 << 20

# How much the medians of the second and of the last fifth of a run may differ.
#: Resident memory: the allocator keeps what it once needed and its memory fragments under a random load, which
#: made processes whose heap was constant creep by 14 MiB in three minutes.
RSS_ALLOWANCE_BYTES = 16 * MIB
#: What was allocated and not freed: 1 MiB up or down was seen.
HEAP_ALLOWANCE_BYTES = 4 * MIB
#: gRPC's own pool starts a thread more when it is busy, and ends it minutes later.
THREADS_ALLOWANCE = 2

#: Fewer make no fifths.
SAMPLES_MIN = 10


@dataclass(slots=True)
class Series:
    """The samples of one process."""

    name: str
    seconds: list[float] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)

    def add(self, seconds: float, footprint: Footprint) -> None:
        """Take in a sample."""
        self.seconds.append(seconds)
        self.footprints.append(footprint)

    def between(self, begin: float, end: float) -> list[Footprint]:
        """Return the samples of a part of the time; 0 is its beginning, 1 the last sample."""
        first, last = begin * self.seconds[-1], end * self.seconds[-1]
        pairs = zip(self.seconds, self.footprints, strict=True)
        return [footprint for seconds, footprint in pairs if first <= seconds <= last]

    def json(self) -> dict[str, object]:
        """Return a list for each quantity."""
        samples = [asdict(footprint) for footprint in self.footprints]
        columns = {name: [sample[name] for sample in samples] for name in samples[0]} if samples else {}
        return {"name": self.name, "seconds": self.seconds, **columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Medians of the second and of the last fifth of a series, and what grew. The first fifth is warming up."""

    name: str
    rss_bytes: tuple[float, float]
    pss_bytes: tuple[float, float]
    #: None where it is not known.
    heap_bytes: tuple[float, float] | None
    threads: tuple[float, float]
    descriptors: tuple[float, float]
    #: In words; empty if the process was flat.
    grew: tuple[str, ...]


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
    counts = {quantity: medians(quantity) for quantity in ("threads", "descriptors")}
    allowed = {"threads": THREADS_ALLOWANCE, "descriptors": 0}
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
        grew=tuple(grew),
    )


HEAD = [
    "process",
    *("RSS MiB", "growth", "PSS MiB", "growth", "heap MiB", "growth"),
    *("threads", "descriptors", "verdict"),
]


def cells(verdict: Verdict) -> list[str]:
    """Return a row of the table whose head is HEAD."""
    row = [verdict.name]
    for memory in (verdict.rss_bytes, verdict.pss_bytes, verdict.heap_bytes):
        if memory is None:
            row += ["", ""]
        else:
            row += [f"{memory[0] / MIB:.1f}", f"{(memory[1] - memory[0]) / MIB:+.2f}"]
    for first, last in (verdict.threads, verdict.descriptors):
        row.append(f"{first:g}" if first == last else f"{first:g} to {last:g}")
    return [*row, "grew: " + ", ".join(verdict.grew) if verdict.grew else "flat"]
