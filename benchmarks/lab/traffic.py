"""The link between a host and the switch, and the traffic of all links between two points in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

#: Bytes of a full Ethernet frame, and of the TCP payload in it.
FRAME_BYTES, SEGMENT_BYTES = 1514, 1448
#: Minimum number of frames that every queue holds. With fewer, eight senders could not have two packets each in flight.
_LEAST_FRAMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The properties of a link, which are the same for all hosts and both directions."""

    rate_mbit: float
    #: Length of a link's queue, in milliseconds of its rate; a full queue drops packets. A switch port
    #: holds about 1 ms. A queue that would hold fewer than `_LEAST_FRAMES` frames is longer.
    latency_ms: float = 1.0
    #: Milliseconds from a host to the switch without queues, which is half of a round trip.
    delay_ms: float = 0.0
    #: Bytes that may pass immediately after a pause, but never more than a queue holds;
    #: `benchmarks.lab.network` explains the default.
    burst_bytes: int = 128 << 10
    #: Maximum segments that TCP may pass as one packet, which a short queue drops whole; 0 means as many as fit.
    packet_segments: int = 0
    #: Name of TCP's congestion control; empty until it is known.
    congestion: str = ""
    #: Goodput of one TCP stream of iperf3 in the better direction; None until measured.
    goodput_mbit: float | None = None

    @property
    def packet_bytes(self) -> int:
        """Return TCP's largest packet, such that two of them fit a burst, and with their headers also a queue."""
        in_queue = self.queue_bytes * SEGMENT_BYTES // FRAME_BYTES
        return min(64 << 10, self.bucket_bytes // 2, in_queue // 2)

    @property
    def queue_bytes(self) -> int:
        """Return the length of a queue."""
        return max(int(self.rate_mbit * self.latency_ms / 8 * 1000), _LEAST_FRAMES * FRAME_BYTES)

    @property
    def queue_ms(self) -> float:
        """Return the actual milliseconds that a packet waits in a full queue."""
        return self.queue_bytes * 8e-3 / self.rate_mbit

    @property
    def bucket_bytes(self) -> int:
        """Return the actual burst. More bytes than a queue holds would be a second, longer queue."""
        return min(self.burst_bytes, self.queue_bytes)

    @property
    def name(self) -> str:
        """The name in tables."""
        path = f", {self.delay_ms:g} ms long" if self.delay_ms else ""
        path += f", {self.packet_segments} segments" if self.packet_segments else ""
        return f"{self.rate_mbit:g} Mbit/s, {self.queue_ms:.3g} ms{path}"

    @property
    def slug(self) -> str:
        """The name in test ids."""
        path = f"-delay{self.delay_ms:g}ms" if self.delay_ms else ""
        return f"{self.rate_mbit:g}mbit-queue{self.latency_ms:g}ms{path}-burst{self.burst_bytes >> 10}KiB"

    def json(self) -> dict[str, Any]:
        """Return the link in the form of files, with the length of its queues."""
        return asdict(self) | {"queue_bytes": self.queue_bytes}


def queue_ms(network: Mapping[str, Any]) -> float:
    """Return the milliseconds that a packet waits in a full queue of a link described by `Link.json`.

    Results from before the length was recorded have queues of at least a burst.
    """
    rate_mbit = network["rate_mbit"]
    least_bytes = max(rate_mbit * network["latency_ms"] * 125, network["burst_bytes"])
    return float(network.get("queue_bytes", least_bytes) * 8e-3 / rate_mbit)


def link_of(rate_mbit: float) -> Link:
    """Return a link whose burst is at least a millisecond of the rate, since timers may be that late (tc-tbf(8))."""
    usual = Link(rate_mbit=rate_mbit)
    return replace(usual, burst_bytes=max(usual.burst_bytes, int(rate_mbit * 1000 / 8)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of all workers and of all reducers, and the losses of all links."""

    worker_tx_bytes: int = 0
    worker_rx_bytes: int = 0
    reducer_tx_bytes: int = 0
    reducer_rx_bytes: int = 0
    #: Packets dropped by a full queue on either end of a link.
    dropped_packets: int = 0
    #: Segments that TCP has retransmitted on all hosts.
    retransmitted_segments: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return _traffic([mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)])

    def __sub__(self, other: Traffic) -> Traffic:
        return _traffic([mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)])


def _traffic(values: Sequence[int]) -> Traffic:
    return Traffic(**dict(zip(Traffic.__slots__, values, strict=True)))
