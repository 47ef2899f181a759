"""The rates of results on one stream, which tell how much it can sustain."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from reduction.limits import KIB

#: A rate is measured over at least this many bytes of results and this many seconds. If this process is late, results
#: that have arrived over milliseconds are read all at once.
RATE_BYTES, RATE_S = 256 * KIB, 0.004
#: Number of recent rates kept per stream.
RATES_KEPT = 32


class RateMeter:
    """Measures over stretches of results without a pause."""

    def __init__(self) -> None:
        #: Recent rates in payload bytes per second, the newest last.
        self.rates: deque[float] = deque(maxlen=RATES_KEPT)
        #: The present stretch: when it began, and its bytes and seconds since then; None before its first result.
        self._began_at: float | None = None
        self._bytes, self._s = 0, 0.0
        #: Whether a rate was measured since the last pause.
        self._has_measured = False

    def on_result(self, nbytes: int, now: float) -> None:
        """Record a result of that many payload bytes."""
        if self._began_at is None:
            self._began_at, self._bytes = now, 0
            return
        self._bytes += nbytes
        self._s = now - self._began_at
        if self._s >= RATE_S and self._measure():
            self._began_at, self._bytes = now, 0

    def on_pause(self) -> None:
        """Record that nothing is in flight: the next result begins a new stretch."""
        if not self._has_measured:  # what came since the last pause was short, so all of it is one stretch
            self._measure()
        self._began_at, self._bytes, self._has_measured = None, 0, False

    def _measure(self) -> bool:
        """Record the rate of the present stretch if it has enough bytes; return whether it has."""
        if self._bytes < RATE_BYTES:
            return False
        self.rates.append(self._bytes / max(self._s, 1e-6))
        self._has_measured = True
        return True


def good_rate(rates: Sequence[float]) -> float:
    """Return a rate that the stream can sustain: the 90th percentile.

    The highest rate may merely have followed a stall.
    """
    return sorted(rates)[len(rates) * 9 // 10]
