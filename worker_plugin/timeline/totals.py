"""A communicator's activity since it began, in numbers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

#: Counters of the loop's thread.
_OF_LOOP = (
    "bytes_pushed",
    "bytes_pulled",
    "bytes_contributed",
    "bytes_repushed",
    "epochs",
    "resharded",
    "reducers",
    "retransmits",
)


@dataclass(slots=True)
class Totals:
    """Counters of one communicator. Any thread may read them.

    The loop's thread counts bytes. Collectives begin on the users' threads and end on the copying threads, so these two
    take a lock.
    """

    #: Collectives whose result is in the tensor.
    collectives: int = 0
    #: DDP backward passes whose last bucket was issued.
    steps: int = 0
    #: Payload bytes sent and received.
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    #: Bytes of contributions, as counted by the layout, that were pushed, and that were pushed again because the set of
    #: reducers had changed.
    bytes_contributed: int = 0
    bytes_repushed: int = 0
    #: Number of the present generation of the set of reducers, and how often its members changed.
    epochs: int = 0
    resharded: int = 0
    #: Reducer processes in that set.
    reducers: int = 0
    #: Segments that TCP has retransmitted, as far as the kernel reports.
    retransmits: int = 0
    #: Seconds in which at least one collective was in flight, up to the latest moment without any.
    busy_s: float = 0.0
    in_flight: int = 0
    _since: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, now: float) -> None:
        """Record that a collective was issued."""
        with self._lock:
            if not self.in_flight:
                self._since = now
            self.in_flight += 1

    def end(self, now: float) -> None:
        """Record that a collective's result is in the tensor."""
        with self._lock:
            self.collectives += 1
            if self.in_flight == 1:
                self.busy_s += now - self._since
            self.in_flight = max(0, self.in_flight - 1)

    def stop(self) -> None:
        """Record that the collectives in flight have failed."""
        with self._lock:
            if self.in_flight:
                self.busy_s += time.monotonic() - self._since
                self.in_flight = 0

    def counts(self) -> list[int]:
        """Return the counters of the loop's thread."""
        return [getattr(self, name) for name in _OF_LOOP]

    def take(self, counts: list[int]) -> None:
        """Set the counters to the result of another process's `counts`."""
        for name, count in zip(_OF_LOOP, counts, strict=True):
            setattr(self, name, count)

    @property
    def comm_s(self) -> float:
        """Seconds in which at least one collective was in flight."""
        with self._lock:
            return self.busy_s + (time.monotonic() - self._since if self.in_flight else 0.0)
