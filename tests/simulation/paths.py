"""The paths between hosts: their latencies and packet losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from benchmarks.simulation.network import Clock

#: Latency of a path, one way, and the maximum random addition to it.
LATENCY_S, JITTER_S = 0.0005, 0.001


@dataclass(slots=True)
class Paths:
    """All paths, which are alike except where one was changed."""

    random: Random
    clock: Clock = field(default_factory=Clock)
    #: Extra latency of a path, and the time until which it is added.
    _slow: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    #: Fraction of packets that a path loses, and the time until which it does.
    _lossy: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def arrival(self, source: str, target: str) -> float:
        """Return when something sent now arrives."""
        if source == target:
            return self.clock.now + 1e-5
        extra, until = self._slow.get((source, target), (0.0, 0.0))
        slow = extra if self.clock.now < until else 0.0
        return self.clock.now + LATENCY_S + slow + self.random.random() * JITTER_S

    def slow(self, source: str, target: str, extra_s: float, seconds: float) -> None:
        """Add to the latency of a path for `seconds`."""
        self._slow[source, target] = extra_s, self.clock.now + seconds

    def lose_packets(self, source: str, target: str, part: float, seconds: float) -> None:
        """Lose a fraction of the packets of a path for `seconds`."""
        self._lossy[source, target] = part, self.clock.now + seconds

    def loss(self, source: str, target: str) -> float:
        """Return the fraction of packets that a path loses now."""
        part, until = self._lossy.get((source, target), (0.0, 0.0))
        return part if self.clock.now < until else 0.0
