"""Rank 0's choice of the grid, which is the chunk size. The size changes between collectives, with a new epoch.

    phase      what is known                                 left when
    GUESSING   nothing, or that larger chunks were faster    the rate asks for no larger chunk
    WATCHING   the size suits the rate; it only grows, and   never
               only if streams are paced
    SETTLED    the user chose, or all are on one host        never

Where all ranks and reducers are on one host, nothing has to be measured. Chunks are as large as possible, because
messages cost CPU and no link carries the bytes.

What is in flight on an unpaced stream has to fit into a switch's queue. On a paced stream it waits in the hosts, so
chunks may be larger, which costs less CPU.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace

from reduction.limits import CHUNK_BYTES_MAX

from worker_plugin.core.flow.credit import PlaneTarget, chunk_bytes_for
from worker_plugin.core.flow.lane import Lane

#: The chunk size within one host. At n=2 and 4, chunks of 4 MiB were at least as fast as those of 1 and 2 MiB for sums
#: of 64 KiB to 64 MiB, both in shared memory and over TCP.
WITHIN_HOST_BYTES = CHUNK_BYTES_MAX
#: On paced streams the target latency is this multiple of the plane's.
PACED_RATIO = 2.0


class GridPhase(enum.Enum):
    """Phase of the choice; see the table above."""

    GUESSING = "guessing"
    WATCHING = "watching"
    SETTLED = "settled"


class Grid:
    """The chunk size of rank 0's next configuration.

    Args:
        chunk_bytes: the user's choice; None lets measurements decide.
        target: the data plane's.
    """

    def __init__(self, chunk_bytes: int | None, target: PlaneTarget) -> None:
        self.chunk_bytes = chunk_bytes or target.first_chunk_bytes
        self._is_free = chunk_bytes is None
        self.phase = GridPhase.GUESSING if self._is_free else GridPhase.SETTLED
        self._is_within_host = False
        self._target = target

    @property
    def is_settled(self) -> bool:
        """Whether the size will no longer change."""
        return self.phase is GridPhase.SETTLED

    def begin(self, *, is_within_host: bool) -> None:
        """Begin again if the next epoch's reducers are reached differently from the present ones.

        Args:
            is_within_host: whether all ranks and reducers are on one host.
        """
        if self._is_free and is_within_host != self._is_within_host:
            self._is_within_host = is_within_host
            self.chunk_bytes = WITHIN_HOST_BYTES if is_within_host else self._target.first_chunk_bytes
            self.phase = GridPhase.SETTLED if is_within_host else GridPhase.GUESSING

    def look(self, lanes: Sequence[Lane]) -> bool:
        """Return whether `chunk_bytes` has changed. Call this while no collective is in flight.

        Chunks grow for as long as the rates call for larger ones, which may show that the links are faster. After the
        first choice they never shrink, because a rate reached with one large chunk at a time says too little.

        Args:
            lanes: of all reducers of the present epoch. The size must suit those with the smallest shares: such a lane
                is idle most of the time if it has only one large chunk under way.
        """
        credits = [(lane.weight, lane.credit) for lane in lanes if lane.credit is not None]
        is_paced = any(credit.is_paced for _, credit in credits)
        if self.is_settled or (self.phase is GridPhase.WATCHING and not is_paced):
            return False
        target = self._target
        if is_paced:
            target = replace(target, target_s=PACED_RATIO * target.target_s)
        least = min((lane.weight for lane in lanes), default=0)
        rates = [rate for weight, credit in credits if weight == least for rate in credit.rates]
        size = chunk_bytes_for(rates, target)
        if size is None:
            return False
        if size > self.chunk_bytes:
            return self._change(size, self.phase)
        is_first = self.phase is GridPhase.GUESSING and self.chunk_bytes == self._target.first_chunk_bytes
        return self._change(size if is_first else self.chunk_bytes, GridPhase.WATCHING)

    def _change(self, chunk_bytes: int, phase: GridPhase) -> bool:
        has_changed = chunk_bytes != self.chunk_bytes
        self.chunk_bytes = chunk_bytes
        self.phase = phase
        return has_changed
