"""Keeps the lanes of a rank in step, where they would get out of it.

Each lane adapts its credit by itself, so all of a rank's lanes run equally fast through its link.
If shares differ, those with small ones would be done early in a collective, and then those with
large ones would be left with links that nobody else uses. The same happens to equal shares if one
reducer is on the rank's own host, where its lane needs no link. Therefore no lane pushes further than
LEAD_CHUNKS of the largest share ahead of the slowest one, or LEAD_CHUNKS_LEAST of the smallest share if
that is further: a lane that may have one chunk at a time under way waits a whole round trip for each.

Where all lanes are alike they stay in step by themselves, and the convoy costs more than it gains:
8 % on loopback at n=4 and k=2.

A place in the order of all pushes is a number of bytes: those of all earlier collectives, and of
this one the part that the lane has behind it, of its own chunks. So two lanes are in step if they
have the same part of a collective behind them, whatever their shares.

Nothing can wait for ever. Results go to all ranks, so in the end all of them agree which lane is the
slowest; each of them may push there, so its oldest chunk becomes complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from reduction.model import Configuration

#: How many chunks the lane with the largest share may be ahead of the slowest lane, and the one with the smallest.
LEAD_CHUNKS, LEAD_CHUNKS_LEAST = 4, 2


class InStep(Protocol):
    """A lane, as far as the convoy is concerned."""

    @property
    def oldest(self) -> float:
        """The place of the oldest chunk whose result has not come; infinite if all have come."""


class Convoy:
    """How far each lane of an epoch may go.

    Args:
        configuration: the epoch's.
        is_mixed: whether some of the members, but not all, are on the rank's own host.
    """

    def __init__(self, configuration: Configuration, *, is_mixed: bool = False) -> None:
        weights = configuration.weights
        #: Whether lanes would get out of step by themselves.
        self.is_needed = is_mixed or len(set(weights)) > 1
        lead_chunks = max(LEAD_CHUNKS / max(weights), LEAD_CHUNKS_LEAST / min(weights))
        self._lead_bytes = lead_chunks * configuration.chunk_bytes * sum(weights)
        #: Where the slowest lane is.
        self._slowest = -math.inf
        #: The last place at which a lane may push.
        self.limit = math.inf

    def holds_up(self, lane: InStep) -> bool:
        """Whether this lane is the slowest one, so that the others may go further when it has advanced."""
        return lane.oldest <= self._slowest

    def update(self, lanes: Iterable[InStep]) -> None:
        """Record where all lanes are."""
        self._slowest = min((lane.oldest for lane in lanes), default=math.inf)
        self.limit = self._slowest + self._lead_bytes
