"""One comparison of contenders, and the quantities that follow from it. README.md defines the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.nccl_log import NcclLog
from benchmarks.lab.cluster import Cluster
from benchmarks.lab.ranks import OURS
from benchmarks.lab.traffic import Link
from benchmarks.method.paired import Measurement
from benchmarks.method.table import size_text, value_text
from reducer.resources.allowance import default_processes

#: Ranks that share a GPU take turns on it. Their time on shaped links says something about the
#: links only if they are this many times as fast without them.
CLEARLY_FASTER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The measurements of one comparison, by contender: names of OURS, "ring" and "noop"."""

    what: str
    size_bytes: int
    workers: int
    reducers: int
    device: str
    #: None for loopback.
    link: Link | None
    iterations: int
    measured: dict[str, Measurement]
    #: Processes of each reducer.
    processes: int = 1
    #: Seconds per iteration of the median turn on links that are not shaped, by contender.
    unshaped_s: Mapping[str, float] = field(default_factory=dict)
    #: The contents of NCCL's log; None without GPUs.
    nccl: NcclLog | None = None

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        what: str,
        size_bytes: int,
        iterations: int,
        measured: dict[str, Measurement],
        *,
        unshaped_s: Mapping[str, float] | None = None,
        nccl: NcclLog | None = None,
    ) -> Row:
        """Return the row of a comparison on a cluster."""
        return cls(
            what=what,
            size_bytes=size_bytes,
            workers=cluster.shape.workers,
            reducers=cluster.shape.reducers,
            device=cluster.shape.device,
            link=cluster.link,
            iterations=iterations,
            measured=measured,
            processes=cluster.shape.processes or default_processes(),
            unshaped_s={} if unshaped_s is None else unshaped_s,
            nccl=nccl,
        )

    @property
    def ring(self) -> str:
        """The library whose ring was compared."""
        return "NCCL" if self.device == "cuda" else "Gloo"

    @property
    def place(self) -> str:
        """Where it was measured."""
        return "loopback" if self.link is None else self.link.name

    def label(self, name: str) -> str:
        """Return the name of a contender for people."""
        return self.ring if name == "ring" else name

    def quartiles(self, name: str) -> tuple[float, float, float] | None:
        """Return the quartiles of ring's time / own time, over all pairs of neighbouring turns."""
        ring = self.measured.get("ring")
        if name == "ring" or ring is None:
            return None
        return self.measured[name].times_as_fast_as(ring)

    def times_as_fast_unshaped(self, name: str) -> float | None:
        """Return time / time on links that are not shaped, or None if the latter was not measured."""
        unshaped_s = self.unshaped_s.get(name)
        return None if unshaped_s is None else self.measured[name].turn_s / unshaped_s

    def doubts(self, name: str) -> list[str]:
        """Return the reasons why a time on shaped links says nothing about the network."""
        reasons = []
        factor = self.times_as_fast_unshaped(name)
        if factor is not None and factor < CLEARLY_FASTER:
            reasons.append(f"unshaped it is only {factor:.2f} times as fast, {CLEARLY_FASTER:g} is wanted")
        if name == "ring" and self.nccl is not None and self.link is not None:
            reasons += self.nccl.problems(self.workers)
        return reasons

    def algbw_gb_s(self, name: str) -> float:
        """Return the bandwidth in GB/s = 1e9 bytes/s."""
        return self.size_bytes / self.measured[name].turn_s / 1e9

    def algbw_mbit_s(self, name: str) -> float:
        """Return the bandwidth in Mbit/s = 1e6 bits/s."""
        return self.algbw_gb_s(name) * 8e3

    def goodput_fraction(self, name: str) -> float | None:
        """Return bandwidth / goodput of one TCP stream. Reducers send each byte once each way, so 1 is the bound."""
        if self.link is None or self.link.goodput_mbit is None or name == "noop":
            return None
        return self.algbw_mbit_s(name) / self.link.goodput_mbit

    def worker_cpu_s_per_gb(self, name: str) -> float:
        """Return a rank's CPU seconds (mean of the ranks) per GB of its tensors."""
        return self.measured[name].worker_cpu_s / self.workers / self._bytes(name) * 1e9

    def reducer_cpu_s_per_gb(self, name: str) -> float | None:
        """Return the CPU seconds of all reducers together per GB of one rank's tensors."""
        return self.measured[name].reducer_cpu_s / self._bytes(name) * 1e9 if name in OURS else None

    def wire(self, name: str) -> dict[str, float] | None:
        """Return the bytes of one process on its link, by those of its tensors, and the losses of all links."""
        if self.link is None:
            return None
        traffic = self.measured[name].traffic
        per_worker, per_reducer = self.workers * self._bytes(name), max(self.reducers, 1) * self._bytes(name)
        return {
            "worker_tx": traffic.worker_tx_bytes / per_worker,
            "worker_rx": traffic.worker_rx_bytes / per_worker,
            "reducer_tx": traffic.reducer_tx_bytes / per_reducer,
            "reducer_rx": traffic.reducer_rx_bytes / per_reducer,
            "dropped_packets": traffic.dropped_packets,
            "retransmitted_segments": traffic.retransmitted_segments,
        }

    def line(self) -> str:
        """Return the row as text, for somebody who waits for the next one."""
        case = f"{self.what}, {size_text(self.size_bytes)}, n={self.workers} k={self.reducers}, {self.place}"
        return f"{case}: {', '.join(map(self._brief, self.measured))}"

    def _brief(self, name: str) -> str:
        quartiles = self.quartiles(name)
        ratio = "" if quartiles is None else f" ({quartiles[1]:.2f} x ring)"
        turn_ms = value_text(1e3 * self.measured[name].turn_s)
        return f"{self.label(name)} {turn_ms} ms{ratio}"

    def json(self) -> dict[str, Any]:
        """Return the row as in the file."""
        return {
            "what": self.what,
            "size_bytes": self.size_bytes,
            "workers": self.workers,
            "reducers": self.reducers,
            "processes": self.processes,
            "iterations": self.iterations,
            "ring": self.ring,
            "device": self.device,
            "network": "loopback" if self.link is None else self.link.json(),
            "nccl": None if self.nccl is None else self.nccl.json(),
            "contenders": {name: self._contender(name) for name in self.measured},
        }

    def _contender(self, name: str) -> dict[str, Any]:
        measurement, quartiles = self.measured[name], self.quartiles(name)
        names = ("low_quartile", "median", "high_quartile")
        return {
            "turns": measurement.turns,
            "p50_s": measurement.p50_s,
            "algbw_gb_s": self.algbw_gb_s(name),
            "per_s": 1 / measurement.turn_s,
            "goodput_fraction": self.goodput_fraction(name),
            "worker_cpu_s_per_gb": self.worker_cpu_s_per_gb(name),
            "reducer_cpu_s_per_gb": self.reducer_cpu_s_per_gb(name),
            "ratio": None if quartiles is None else dict(zip(names, quartiles, strict=True)),
            "wire": self.wire(name),
            "unshaped_s": self.unshaped_s.get(name),
            "doubts": self.doubts(name),
        }

    def _bytes(self, name: str) -> int:
        return self.size_bytes * self.iterations * len(self.measured[name].turns)
