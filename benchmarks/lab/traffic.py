"""A link between a host and the switch, and what went over all links between two moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The same for every host, and each way."""

    rate_mbit: float
    #: How long a packet may wait in the queue of a link; the queue refuses others.
    latency_ms: float = 20.0
    #: What may pass at once after a pause; see `benchmarks.lab.network`.
    burst_bytes: int = 128 << 10
    #: TCP's algorithm, once it is known.
    congestion: str = ""
    #: What one TCP stream of iperf3 carries, the slower of both directions, once it was measured.
    goodput_mbit: float | None = None

    @property
    def packet_bytes(self) -> int:
        """Return how much TCP may hand over as one packet: half a burst, and no more than it ever does."""
        return min(64 << 10, self.burst_bytes // 2)

    @property
    def queue_bytes(self) -> int:
        """Return the length of a queue; at least a packet, with its headers, must fit."""
        return max(int(self.rate_mbit * self.latency_ms / 8 * 1000), self.burst_bytes)

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.rate_mbit:g} Mbit/s, {self.latency_ms:g} ms"

    @property
    def slug(self) -> str:
        """As in test ids."""
        return f"{self.rate_mbit:g}mbit-queue{self.latency_ms:g}ms-burst{self.burst_bytes >> 10}KiB"


def link_of(rate_mbit: float) -> Link:
    """Return a link whose burst is a millisecond of the rate at least: timers may be late by as much, tc-tbf(8)."""
    usual = Link(rate_mbit=rate_mbit)
    return replace(usual, burst_bytes=max(usual.burst_bytes, int(rate_mbit * 1000 / 8)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Sums over all workers, over all reducers, and over everything."""

    worker_tx_bytes: int = 0
    worker_rx_bytes: int = 0
    reducer_tx_bytes: int = 0
    reducer_rx_bytes: int = 0
    #: Refused by a full queue, on either end of a link.
    dropped_packets: int = 0
    #: What TCP sent once more, on all hosts.
    retransmitted_segments: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return _traffic([mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)])

    def __sub__(self, other: Traffic) -> Traffic:
        return _traffic([mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)])


def _traffic(values: Sequence[int]) -> Traffic:
    return Traffic(**dict(zip(Traffic.__slots__, values, strict=True)))
