"""One comparison of contenders, and the derived quantities. README.md defines the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.nccl_log import NcclLog
from benchmarks.lab.cluster import Shape
from benchmarks.lab.ranks import OURS
from benchmarks.method.paired import Measurement
from benchmarks.method.table import Quartiles, size_text, value_text
from reducer.resources.host_limits import default_processes

#: Ranks that share a GPU take turns on it. Their time on shaped links only says something about the
#: links if they are this many times as fast on unshaped ones.
CLEARLY_FASTER = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements of one comparison, by contender: names of OURS, "ring" and "noop"."""

    #: Shape of the processes, with the goodput of its links if that was measured.
    shape: Shape
    what: str
    size_bytes: int
    iterations: int
    measured: dict[str, Measurement]
    #: Seconds per iteration of the median turn on unshaped links, by contender.
    unshaped_s: Mapping[str, float] = field(default_factory=dict)
    #: The contents of NCCL's log; None without GPUs.
    nccl: NcclLog | None = None

    @property
    def ring(self) -> str:
        """The library whose ring was compared."""
        return "NCCL" if self.shape.device == "cuda" else "Gloo"

    @property
    def place(self) -> str:
        """The place of the measurement."""
        return "loopback" if self.shape.link is None else self.shape.link.name

    def label(self, name: str) -> str:
        """Return the display name of a contender."""
        return self.ring if name == "ring" else name

    def quartiles(self, name: str) -> Quartiles | None:
        """Return the quartiles of ring's time / own time, over all pairs of neighbouring turns."""
        ring = self.measured.get("ring")
        if name == "ring" or ring is None:
            return None
        return self.measured[name].times_as_fast_as(ring)

    def times_as_fast_unshaped(self, name: str) -> float | None:
        """Return time / time on unshaped links, or None if the latter was not measured."""
        unshaped_s = self.unshaped_s.get(name)
        return None if unshaped_s is None else self.measured[name].turn_s / unshaped_s

    def doubts(self, name: str) -> list[str]:
        """Return the reasons why a time on shaped links says nothing about the network."""
        reasons = []
        factor = self.times_as_fast_unshaped(name)
        if factor is not None and factor < CLEARLY_FASTER:
            reasons.append(f"unshaped it is only {factor:.2f} times as fast, {CLEARLY_FASTER:g} is wanted")
        if name == "ring" and self.nccl is not None and self.shape.link is not None:
            reasons += self.nccl.problems(self.shape.workers)
        return reasons

    def line(self) -> str:
        """Return the row as text for progress output."""
        hosts = f"n={self.shape.workers} k={self.shape.reducers}"
        case = f"{self.what}, {size_text(self.size_bytes)}, {hosts}, {self.place}"
        return f"{case}: {', '.join(map(self._brief, self.measured))}"

    def _brief(self, name: str) -> str:
        quartiles = self.quartiles(name)
        ratio = "" if quartiles is None else f" ({quartiles.median:.2f} x ring)"
        turn_ms = value_text(1e3 * self.measured[name].turn_s)
        return f"{self.label(name)} {turn_ms} ms{ratio}"

    def json(self) -> dict[str, Any]:
        """Return the row in the form of the file."""
        return {
            "what": self.what,
            "size_bytes": self.size_bytes,
            "workers": self.shape.workers,
            "reducers": self.shape.reducers,
            "processes": self.shape.processes or default_processes(),
            "iterations": self.iterations,
            "ring": self.ring,
            "device": self.shape.device,
            "network": "loopback" if self.shape.link is None else self.shape.link.json(),
            "nccl": None if self.nccl is None else self.nccl.json(),
            "contenders": {name: self.figures(name) for name in self.measured},
        }

    def figures(self, name: str) -> dict[str, Any]:
        """Return the quantities of a contender in the form of the file."""
        measurement, quartiles, link = self.measured[name], self.quartiles(name), self.shape.link
        names = ("low_quartile", "median", "high_quartile")
        algbw_gb_s = self.size_bytes / measurement.turn_s / 1e9
        # Reducers send each byte once in each direction, so the goodput of one TCP stream is the bound.
        goodput_mbit = None if link is None or name == "noop" else link.goodput_mbit
        gb = self.size_bytes * self.iterations * len(measurement.turns) / 1e9
        return {
            "turns": measurement.turns,
            "p50_s": measurement.p50_s,
            "algbw_gb_s": algbw_gb_s,
            "per_s": 1 / measurement.turn_s,
            "goodput_fraction": None if goodput_mbit is None else algbw_gb_s * 8e3 / goodput_mbit,
            "worker_cpu_s_per_gb": measurement.worker_cpu_s / self.shape.workers / gb,
            "reducer_cpu_s_per_gb": measurement.reducer_cpu_s / gb if name in OURS else None,
            "ratio": None if quartiles is None else dict(zip(names, quartiles, strict=True)),
            "wire": None if link is None else self._wire(measurement, 1e9 * gb),
            "unshaped_s": self.unshaped_s.get(name),
            "doubts": self.doubts(name),
        }

    def _wire(self, measurement: Measurement, nbytes: float) -> dict[str, float]:
        """Return the bytes of one process on its link relative to its tensors, and the losses of all links."""
        traffic = measurement.traffic
        per_worker, per_reducer = self.shape.workers * nbytes, max(self.shape.reducers, 1) * nbytes
        return {
            "worker_tx": traffic.worker_tx_bytes / per_worker,
            "worker_rx": traffic.worker_rx_bytes / per_worker,
            "reducer_tx": traffic.reducer_tx_bytes / per_reducer,
            "reducer_rx": traffic.reducer_rx_bytes / per_reducer,
            "dropped_packets": traffic.dropped_packets,
            "retransmitted_segments": traffic.retransmitted_segments,
        }
