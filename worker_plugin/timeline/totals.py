"""What a communicator has done since it began, in numbers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

#: What the loop's thread counts.
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

    The loop's thread counts bytes. Collectives begin on the users' threads and end on those that
    copy, so these two take a lock.
    """

    #: Collectives whose result is in the tensor.
    collectives: int = 0
    #: Backward passes of DDP whose last bucket was issued.
    steps: int = 0
    #: Payload bytes sent and received.
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    #: Bytes of contributions, as the layout counts them, that were pushed, and pushed once more
    #: because the set of reducers had changed.
    bytes_contributed: int = 0
    bytes_repushed: int = 0
    #: Number of the present generation of the set of reducers, and how often it got other members.
    epochs: int = 0
    resharded: int = 0
    #: Reducer processes in that set.
    reducers: int = 0
    #: Packets that TCP has sent again, as far as the kernel tells.
    retransmits: int = 0
    #: Seconds in which at least one collective was on its way, up to the latest moment without any.
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
        """Record that the result of one is in the tensor."""
        with self._lock:
            self.collectives += 1
            if self.in_flight == 1:
                self.busy_s += now - self._since
            self.in_flight = max(0, self.in_flight - 1)

    def stop(self) -> None:
        """Record that those on their way have failed."""
        with self._lock:
            if self.in_flight:
                self.busy_s += time.monotonic() - self._since
                self.in_flight = 0

    def counts(self) -> list[int]:
        """Return the counters of the loop's thread."""
        return [getattr(self, name) for name in _OF_LOOP]

    def take(self, counts: list[int]) -> None:
        """Have what `counts` of another process has returned."""
        for name, count in zip(_OF_LOOP, counts, strict=True):
            setattr(self, name, count)

    @property
    def comm_s(self) -> float:
        """Seconds in which at least one collective was on its way."""
        with self._lock:
            return self.busy_s + (time.monotonic() - self._since if self.in_flight else 0.0)
