"""The collectives of an elastic job as one worker sees them, across generations, and which may have to be repeated.

    0 ........ first ........ missing ........ issued
      forgotten      result kept      issued, no result

A collective is forgotten when every worker is known to hold its result. That is the case once a later
**checkpoint** has a result, because a worker contributes to one only when it holds everything before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker_plugin.communicator import Request
from worker_plugin.tensors.encoding import flat_of
from worker_plugin.tensors.futures import Future


@dataclass(slots=True, eq=False)
class Entry:
    """A collective that this worker has issued."""

    seq: int
    request: Request
    future: Future
    #: Whether the present generation is working on it.
    is_under_way: bool = False
    #: The bytes of the result, once this worker holds it. From then on the tensor belongs to the user again.
    result: torch.Tensor | None = None


class Ledger:
    """The collectives that are not yet forgotten, by number. For one thread at a time."""

    def __init__(self) -> None:
        self.first = 0
        self.issued = 0
        self.entries: dict[int, Entry] = {}

    def begin(self, seq: int) -> None:
        """Start at this number, as a worker does when it joins a job that is already running."""
        self.first = self.issued = seq

    def issue(self, request: Request, future: Future) -> Entry:
        """Add the next collective."""
        entry = self.entries[self.issued] = Entry(self.issued, request, future)
        self.issued += 1
        return entry

    @property
    def missing(self) -> int:
        """The first collective without a result."""
        return next((seq for seq, entry in self.entries.items() if entry.result is None), self.issued)

    @property
    def end(self) -> int:
        """One more than the last collective with a result."""
        held = [seq for seq, entry in self.entries.items() if entry.result is not None]
        return held[-1] + 1 if held else self.first

    @property
    def open_entries(self) -> list[Entry]:
        """The collectives without a result, in ascending order."""
        return [entry for entry in self.entries.values() if entry.result is None]

    def forget_before(self, seq: int) -> None:
        """Forget the collectives that every worker holds."""
        for old in range(self.first, seq):
            del self.entries[old]
        self.first = max(self.first, seq)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, as a flat tensor that shares its memory."""
    return flat_of(tensor).view(torch.uint8)
