"""Keeps the lanes of a rank in step, if their shares differ.

Each lane adapts its credit by itself, so all of a rank's lanes run equally fast through its link.
Those with small shares would be done early in a collective, and then those with large ones would
be left with links that nobody else uses. Therefore no lane pushes more than LEAD_CHUNKS of the
largest share ahead of the slowest one.

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

#: How many chunks the lane with the largest share may be ahead of the slowest lane.
LEAD_CHUNKS = 4


class InStep(Protocol):
    """A lane, as far as the convoy is concerned."""

    @property
    def oldest(self) -> float:
        """The place of the oldest chunk whose result has not come; infinite if all have come."""


class Convoy:
    """How far each lane of an epoch may go.

    Args:
        configuration: the epoch's.
    """

    def __init__(self, configuration: Configuration) -> None:
        weights = configuration.weights
        #: Whether lanes would get out of step by themselves.
        self.is_needed = len(set(weights)) > 1
        self._lead_bytes = LEAD_CHUNKS * configuration.chunk_bytes * sum(weights) / max(weights)
        #: Where the slowest lane is.
        self._slowest = -math.inf
        #: The last place at which a lane may push.
        self.limit = math.inf

    def holds_up(self, lane: InStep) -> bool:
        """Whether this lane is the slowest one, so that the others may go further when it has advanced."""
        return lane.oldest <= self._slowest

    def update(self, lanes: Iterable[InStep]) -> None:
        """Take note of where all lanes are."""
        self._slowest = min((lane.oldest for lane in lanes), default=math.inf)
        self.limit = self._slowest + self._lead_bytes
