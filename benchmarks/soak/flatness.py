"""The verdict of a soak: whether the memory, threads and descriptors of a process stay the same over time."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from functools import partial

from benchmarks.lab.procfs import Footprint
from benchmarks.method.experiment import Cell

MIB = 1 << 20

#: Maximum growth of resident memory from the second to the last fifth of a run. The allocator keeps
#: memory, which fragments under a random load. Processes with a constant heap grew by 14 MiB in
#: three minutes.
RSS_ALLOWANCE_BYTES = 16 * MIB
#: Maximum growth of the bytes that were allocated and not freed. Changes of 1 MiB were seen.
HEAP_ALLOWANCE_BYTES = 4 * MIB
#: Maximum number of additional threads. gRPC's own pool starts another one when it is busy, and ends
#: it minutes later.
THREADS_ALLOWANCE = 2

#: Maximum number of additional descriptors of shared memory regions. Their number depends on the sizes of the buffers.
#: In two minutes without a trend the medians differed by 57.
REGIONS_ALLOWANCE = 64

#: Minimum number of samples that can be split into fifths.
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
        """Return the samples of a part of the time, where 0 is the start and 1 the last sample."""
        first, last = begin * self.seconds[-1], end * self.seconds[-1]
        pairs = zip(self.seconds, self.footprints, strict=True)
        return [footprint for seconds, footprint in pairs if first <= seconds <= last]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The growth of a process from the second to the last fifth of the time. The first fifth is the warm-up."""

    name: str
    #: Both medians of each field of a `Footprint`; that of the heap is missing if it is unknown.
    medians: dict[str, tuple[float, float]]
    #: A description of each quantity that grew; empty if none did.
    grew: tuple[str, ...]


#: The name of each quantity and its allowed growth, by field.
_ALLOWED = {
    "rss_bytes": ("RSS", RSS_ALLOWANCE_BYTES),
    "heap_bytes": ("heap", HEAP_ALLOWANCE_BYTES),
    "threads": ("threads", THREADS_ALLOWANCE),
    "descriptors": ("descriptors", 0),
    "regions": ("regions", REGIONS_ALLOWANCE),
}


def judge(series: Series, rss_allowance_bytes: float = RSS_ALLOWANCE_BYTES) -> Verdict:
    """Compare the second and the last fifth of the time of a series with at least SAMPLES_MIN samples."""
    count = len(series.footprints)
    if count < SAMPLES_MIN:
        raise ValueError(f"{series.name} has {count} samples, {SAMPLES_MIN} are the least that can be judged")
    early, late = ([asdict(sample) for sample in series.between(*part)] for part in ((0.2, 0.4), (0.8, 1.0)))

    def median(samples: list[dict[str, float]], name: str) -> float:
        return statistics.median(sample[name] for sample in samples)

    known = [name for name, value in asdict(series.footprints[0]).items() if value is not None]
    medians = {name: (median(early, name), median(late, name)) for name in known}
    grew = []
    for name, (label, allowed) in (_ALLOWED | {"rss_bytes": ("RSS", rss_allowance_bytes)}).items():
        if name in medians and (growth := medians[name][1] - medians[name][0]) > allowed:
            is_memory = name.endswith("_bytes")
            grew.append(f"{label} by {growth / MIB:.1f} MiB" if is_memory else f"{label} by {growth:g}")
    return Verdict(series.name, medians, tuple(grew))


def _growth(verdict: Verdict, name: str) -> str:
    if name not in verdict.medians:
        return ""
    first, last = verdict.medians[name]
    if name.endswith("_bytes"):
        return f"{first / MIB:.1f} {(last - first) / MIB:+.2f}"
    return f"{first:g}" if first == last else f"{first:g} to {last:g}"


_TITLES = {"RSS, MiB": "rss_bytes", "PSS, MiB": "pss_bytes", "heap, MiB": "heap_bytes"}
COLUMNS: dict[str, Cell] = {
    "process": lambda verdict: verdict.name,
    **{title: partial(_growth, name=name) for title, name in _TITLES.items()},
    **{name: partial(_growth, name=name) for name in ("threads", "descriptors", "regions")},
    "verdict": lambda verdict: "grew: " + ", ".join(verdict.grew) if verdict.grew else "flat",
}
