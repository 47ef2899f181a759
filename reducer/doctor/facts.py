"""The doctor's measurements as plain values with a JSON form. Probes create them, and `judge.py` reads them.

Rates are bytes of payload per second in one direction. Traffic flows both ways at the same time, as in a
training step. Times are in seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from reduction import values
from reduction.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Resources of a host for its processes."""

    name: str
    #: Cores by affinity and by cgroup, whichever is fewer.
    cores: float
    #: Cores by affinity alone.
    affinity: int
    #: Fraction of the scheduler's periods, while the doctor measured, in which the quota stopped a process.
    throttled: float
    #: Cores that were busy before anything was measured.
    busy_cores: float
    python: str
    is_optimized: bool
    #: Bytes of contributions per second that a core adds, by wire dtype.
    sums: dict[str, float]
    descriptors: int
    memory_bytes: int | None
    #: The largest buffers of TCP sockets; 0 if the kernel does not report them.
    receive_buffer: int
    send_buffer: int
    congestion: str
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The network path to a reducer."""

    interface: str
    source: str
    #: Link rate reported by the network card, in Mbit/s; 0 if it reports none or is virtual.
    link_mbit: int
    mss: int
    #: Shortest round trip that TCP itself measured, in seconds.
    rtt_s: float
    #: Time from an empty push to its result, without other traffic.
    answer_s: float
    answer_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducer:
    """One reducer process as one host sees it."""

    address: str
    #: The given address by which the process was found, which for a sibling is not its own.
    given: str
    #: Why it cannot be used; empty if it can.
    trouble: str = ""
    version: str = ""
    #: "tcp" or "grpc", or one of them "with TLS".
    plane: str = ""
    #: Why the plane is not "tcp", although the reducer offers it.
    why_not_tcp: str = ""
    #: Whether it is on this host. There is then no link in between, and without TLS ranks share memory with it.
    is_near: bool = False
    is_draining: bool = False
    #: Other users' jobs that it serves.
    jobs: list[str] = dataclasses.field(default_factory=list)
    free_bytes: int = 0
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Measured rate between one worker and one or more reducers."""

    rank: int
    #: HOST:PORT as given; empty for all reducers together.
    reducer: str
    bytes_per_s: float
    #: Fraction of the TCP segments that were retransmitted.
    resent: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Facts of one rank, or of the only examined host."""

    rank: int
    host: Host
    #: Source of the reducers' addresses: the command line, a variable or a platform.
    source: str
    addresses: list[str]
    #: All processes at these addresses, including siblings.
    reducers: list[Reducer]
    #: How far its clock is ahead of rank 0's, and the maximum error of that; None if not compared.
    clock_s: float | None = None
    clock_error_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All measurements."""

    workers: list[Worker]
    #: Each worker with each reducer, with both links otherwise idle.
    alone: list[Rate] = dataclasses.field(default_factory=list)
    #: All workers with one reducer at a time.
    incast: list[Rate] = dataclasses.field(default_factory=list)
    #: All workers with all reducers, as in a training step.
    together: list[Rate] = dataclasses.field(default_factory=list)
    #: The same bytes by Gloo's ring.
    ring: list[Rate] = dataclasses.field(default_factory=list)
    #: Why nothing, or not everything, was measured; empty if everything was.
    unmeasured: str = ""
    #: Error that ended the measurement.
    failure: str = ""
    #: The expected rate of every worker's link in Mbit/s, if given; otherwise 0.
    expected_mbit: float = 0.0


def from_json(document: Any) -> Facts:
    """Return the measurements from JSON.

    Raises:
        ConfigError: the document does not have the required fields.
    """
    try:
        return values.from_json(Facts, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"this is not the doctor's Facts: {error!r}") from None
