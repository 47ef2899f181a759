"""Rank 0 chooses the grid: how large a chunk is. The size changes between collectives, with a new epoch.

    phase      what is known                                left when
    GUESSING   nothing, or that larger chunks were faster   the rate asks for no larger chunk
    WATCHING   the size suits the rate, perhaps not queues  too many are lost: half the size is tried
    TRYING     how fast twice the size was                  measured: faster, watch again; or go back
    SETTLED    the user or another rank chose, or went back never

Where all ranks and reducers are on one host nothing has to be measured: chunks are as large as they may be,
because messages cost and no link carries the bytes.

Chunks that suit the rate may still not fit into the switches' queues, because n of them meet on the
link of one reducer. Then some are lost. Each loss costs a retransmission timeout, because no later
packet of the chunk reveals it.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence

from reduction.limits import CHUNK_BYTES_MAX

from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.flow.pace import PlaneTarget, chunk_bytes_for

#: The chunk size within one host. At n=2 and 4 chunks of 4 MiB were as fast as those of 1 and 2 MiB or faster for
#: sums of 64 KiB to 64 MiB, in memory that all share and over TCP.
WITHIN_HOST_BYTES = CHUNK_BYTES_MAX
#: Results between two looks at the number of lost packets.
LOOK_RESULTS = 256
#: Lost packets per chunk above which smaller chunks are tried. Measured on rank 0 at n=8, 200
#: Mbit/s and chunks of 32 KiB: queues of 5 ms lose 0.011 to 0.022, queues of 20 ms none.
LOSS_RATE_MAX = 0.004
#: How many times as fast half the size must be to be kept, because it costs more CPU.
SPEEDUP_NEEDED = 1.1


class GridPhase(enum.Enum):
    """Phase of the choice; see the table above."""

    GUESSING = "guessing"
    WATCHING = "watching"
    TRYING = "trying"
    SETTLED = "settled"


class Grid:
    """The chunk size of rank 0's next configuration.

    Args:
        chunk_bytes: the user's choice; None lets measurements decide.
        target: of the data plane.
        is_mine: whether this rank is the one that chooses.
    """

    def __init__(self, chunk_bytes: int | None, target: PlaneTarget, *, is_mine: bool) -> None:
        self.chunk_bytes = chunk_bytes or target.first_chunk_bytes
        self._is_free = is_mine and chunk_bytes is None
        self.phase = GridPhase.GUESSING if self._is_free else GridPhase.SETTLED
        self._is_within_host = False
        self._target = target
        #: At the last look that counted: the epoch, the results in it, and the lost packets.
        self._seen = (0, 0, 0)
        #: The rate with chunks of twice the size, in bytes per second.
        self._rate_before = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the size does not change any more."""
        return self.phase is GridPhase.SETTLED

    @property
    def is_counting_losses(self) -> bool:
        """Whether the next look needs the number of lost packets."""
        return self.phase in (GridPhase.WATCHING, GridPhase.TRYING)

    def begin(self, *, is_within_host: bool) -> None:
        """Begin anew if the reducers of the next epoch are reached in another way than the present ones.

        Args:
            is_within_host: whether all ranks and reducers are on one host.
        """
        if self._is_free and is_within_host != self._is_within_host:
            self._is_within_host = is_within_host
            self.chunk_bytes = WITHIN_HOST_BYTES if is_within_host else self._target.first_chunk_bytes
            self.phase = GridPhase.SETTLED if is_within_host else GridPhase.GUESSING

    def look(self, epoch: int, lanes: Sequence[Lane], packets_lost: int) -> bool:
        """Return whether `chunk_bytes` has changed. To be called while no collective is in flight.

        Args:
            epoch: the present epoch.
            lanes: of all its reducers. The size must suit those with the least shares: where one large
                chunk is all that such a lane has under way, it has nothing to do most of the time.
            packets_lost: how many packets this rank's data connections have lost so far, if
                `is_counting_losses`.
        """
        paces = [lane.pace for lane in lanes if lane.pace is not None]
        least = min((lane.weight for lane in lanes), default=0)
        slowest = [lane.pace for lane in lanes if lane.weight == least and lane.pace is not None]
        rates = [rate for pace in slowest for rate in pace.rates]
        if self.phase is GridPhase.GUESSING:
            return self._guess(rates)
        if not self.is_counting_losses:
            return False
        results = sum(pace.results for pace in paces)
        if self._seen[0] != epoch:
            self._seen = epoch, results, packets_lost
        count = results - self._seen[1]
        if count < LOOK_RESULTS or not rates:
            return False
        share = (packets_lost - self._seen[2]) / count
        self._seen = epoch, results, packets_lost
        if self.phase is GridPhase.TRYING:
            return self._judge(statistics.median(rates))
        if share <= LOSS_RATE_MAX or self.chunk_bytes // 2 < self._target.finest_chunk_bytes:
            return False
        self._rate_before = statistics.median(rates)
        return self._change(self.chunk_bytes // 2, GridPhase.TRYING)

    def _guess(self, rates: Sequence[float]) -> bool:
        """Choose by the rate, and again as long as chunks grow: larger ones may show that the links are faster.

        The size does not shrink again here, because a rate that was reached with one large chunk at
        a time says too little.
        """
        size = chunk_bytes_for(rates, self._target)
        if size is None:
            return False
        if size > self.chunk_bytes:
            return self._change(size, GridPhase.GUESSING)
        has_grown = self.chunk_bytes > self._target.first_chunk_bytes
        return self._change(self.chunk_bytes if has_grown else size, GridPhase.WATCHING)

    def _judge(self, rate: float) -> bool:
        if rate >= SPEEDUP_NEEDED * self._rate_before:
            return self._change(self.chunk_bytes, GridPhase.WATCHING)
        return self._change(self.chunk_bytes * 2, GridPhase.SETTLED)

    def _change(self, chunk_bytes: int, phase: GridPhase) -> bool:
        has_changed = chunk_bytes != self.chunk_bytes
        self.chunk_bytes = chunk_bytes
        self.phase = phase
        return has_changed
