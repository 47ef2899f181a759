"""What the doctor measures, as plain values that go through JSON. Probes make them; `judge.py` reads them.

Rates are bytes of payload per second in one direction; traffic goes both ways at the same time, as in a
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
    """What a host gives its processes."""

    name: str
    #: Cores by affinity and by cgroup; the least counts.
    cores: float
    #: Cores by affinity alone.
    affinity: int
    #: The part of the scheduler's periods, while the doctor measured, in which the quota stopped a process.
    throttled: float
    #: Cores that were busy before anything was measured.
    busy_cores: float
    python: str
    is_optimized: bool
    #: By wire dtype: bytes of contributions per second that a core adds.
    sums: dict[str, float]
    descriptors: int
    memory_bytes: int | None
    #: The largest buffers of TCP's sockets; 0 where the kernel does not tell.
    receive_buffer: int
    send_buffer: int
    congestion: str
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The way to a reducer."""

    interface: str
    source: str
    #: What the network card says of its link, in Mbit/s; 0 if it does not, or if it is a virtual one.
    link_mbit: int
    mss: int
    #: Smoothed round trip that TCP itself measures, in seconds.
    rtt_s: float
    #: From an empty push to its result, without other traffic.
    answer_s: float
    answer_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reducer:
    """One reducer process as one host sees it."""

    address: str
    #: The address that was given; another one than its own if it is a sibling of that.
    given: str
    #: Why it cannot be used; empty if it can.
    trouble: str = ""
    version: str = ""
    #: "tcp" or "grpc", or one of them "with TLS".
    plane: str = ""
    #: Why the plane is not "tcp", although the reducer offers that.
    why_not_tcp: str = ""
    #: Whether it is on this host. Then no link is between them, and without TLS ranks share memory with it.
    is_near: bool = False
    is_draining: bool = False
    #: Jobs of others that it serves.
    jobs: list[str] = dataclasses.field(default_factory=list)
    free_bytes: int = 0
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What went between one worker and one or more reducers."""

    rank: int
    #: HOST:PORT as it was given; empty for all reducers at once.
    reducer: str
    bytes_per_s: float
    #: The part of the bytes sent that TCP had to send again.
    resent: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one rank, or the only host that was asked, knows."""

    rank: int
    host: Host
    #: Who named the reducers: the command line, a variable or a platform.
    source: str
    addresses: list[str]
    #: All processes at these addresses, siblings too.
    reducers: list[Reducer]
    #: What its clock shows more than rank 0's, and by how much that may be wrong; None if nobody compared.
    clock_s: float | None = None
    clock_error_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was measured."""

    workers: list[Worker]
    #: Each worker with each reducer, and nobody else on either link.
    alone: list[Rate] = dataclasses.field(default_factory=list)
    #: All workers with one reducer at a time.
    incast: list[Rate] = dataclasses.field(default_factory=list)
    #: All workers with all reducers: what a step does.
    together: list[Rate] = dataclasses.field(default_factory=list)
    #: The same bytes by Gloo's ring.
    ring: list[Rate] = dataclasses.field(default_factory=list)
    #: Why nothing, or not all, was measured; empty if it was.
    unmeasured: str = ""
    #: What ended the measurement.
    failure: str = ""
    #: The rate of every worker's link in Mbit/s, if the user said what it should be; otherwise 0.
    expected_mbit: float = 0.0


def from_json(document: Any) -> Facts:
    """Return what was measured from JSON.

    Raises:
        ConfigError: the document does not have the fields.
    """
    try:
        return values.from_json(Facts, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"this is no Facts of the doctor: {error!r}") from None
