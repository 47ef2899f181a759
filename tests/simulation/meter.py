"""The amount that one end of a connection has sent, and its pace, as reported by and given to a kernel."""

from __future__ import annotations

import math

from reduction.pacing import Sent

from benchmarks.simulation.network import Clock

#: Payload of a packet, and the delay that a lost one causes for the packets after it, in seconds.
SEGMENT_BYTES, RETRANSMIT_S = 1448, 0.02
#: Size of a frame without its payload.
HEAD_BYTES = 64


class Meter:
    """The sending half of an end. It is a `reducer.engine.Paced`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Bytes per second that may be sent; infinite if it is not paced.
        self.rate = math.inf
        #: When the rate changed last.
        self.changed_at = clock.now
        #: When everything sent so far has left, and when all of it has arrived.
        self._left_at = self._arrived_at = clock.now
        self._bytes = self._segments = self._lost = 0
        self._busy_s = 0.0
        #: Fraction of a lost packet that has accumulated so far.
        self._part_lost = 0.0

    @property
    def sent(self) -> Sent:
        """The amount sent so far; packets in flight count as acknowledged."""
        return Sent(self._bytes, self._segments, self._lost, self._busy_s)

    def pace(self, bytes_per_s: int) -> None:
        """Send at most this many bytes per second from now on."""
        if bytes_per_s != self.rate:
            self.rate, self.changed_at = bytes_per_s, self._clock.now

    def arrival(self, payload_bytes: int, loss: float, path_s: float) -> float:
        """Count a frame that is sent now, and return when it arrives.

        Args:
            payload_bytes: of the frame.
            loss: fraction of the packets that the path loses.
            path_s: latency of the path.
        """
        now, nbytes = self._clock.now, payload_bytes + HEAD_BYTES
        self._left_at = max(now, self._left_at) + nbytes / self.rate
        segments = -(-nbytes // SEGMENT_BYTES)
        self._part_lost += loss * segments
        lost = int(self._part_lost)
        self._part_lost -= lost
        self._bytes += nbytes
        self._segments += segments
        self._lost += lost
        arrives_at = max(self._left_at + path_s + RETRANSMIT_S * (lost > 0), self._arrived_at)
        self._busy_s += arrives_at - max(now, self._arrived_at)
        self._arrived_at = arrives_at
        return arrives_at
