"""Keeps the lanes of a rank in step where they would otherwise diverge.

Each lane adapts its credit independently, so all lanes of a rank run equally fast through its link. If shares
differ, lanes with small shares would finish a collective early and leave the rest to lanes with large shares,
on links that nothing else uses. The same happens with equal shares if one reducer is on the rank's own host,
where its lane needs no link. Therefore no lane pushes further than LEAD_CHUNKS of the largest share ahead of
the slowest one, or LEAD_CHUNKS_LEAST of the smallest share if that is further: a lane limited to one chunk
under way would wait a whole round trip for each.

Where all lanes are alike they stay in step on their own, and the convoy costs more than it gains: 8 % on
loopback at n=4 and k=2.

A position in the order of all pushes is a number of bytes: all bytes of earlier collectives, plus those of this
one times the fraction of its own chunks that the lane has behind it. So two lanes are in step if they have the same
fraction of a collective behind them, whatever their shares.

Nothing can block forever. Results go to all ranks, so eventually all ranks agree which lane is the slowest. Each
of them may push there, so its oldest chunk becomes complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from reduction.model import Configuration

#: Number of chunks by which the lanes with the largest and the smallest share may lead the slowest lane.
LEAD_CHUNKS, LEAD_CHUNKS_LEAST = 4, 2


class InStep(Protocol):
    """A lane, as the convoy sees it."""

    @property
    def oldest(self) -> float:
        """The position of the oldest chunk whose result has not arrived; infinite if all have arrived."""


class Convoy:
    """Limits how far each lane of an epoch may advance.

    Args:
        configuration: the epoch's.
        is_mixed: whether some of the members, but not all, are on the rank's own host.
    """

    def __init__(self, configuration: Configuration, *, is_mixed: bool = False) -> None:
        weights = configuration.weights
        #: Whether lanes would get out of step on their own.
        self.is_needed = is_mixed or len(set(weights)) > 1
        lead_chunks = max(LEAD_CHUNKS / max(weights), LEAD_CHUNKS_LEAST / min(weights))
        self._lead_bytes = lead_chunks * configuration.chunk_bytes * sum(weights)
        #: Position of the slowest lane.
        self._slowest = -math.inf
        #: The last position at which a lane may push.
        self.limit = math.inf

    def holds_up(self, lane: InStep) -> bool:
        """Return whether this lane is the slowest one, so that the others may advance when it has."""
        return lane.oldest <= self._slowest

    def update(self, lanes: Iterable[InStep]) -> None:
        """Record the positions of all lanes."""
        self._slowest = min((lane.oldest for lane in lanes), default=math.inf)
        self.limit = self._slowest + self._lead_bytes
