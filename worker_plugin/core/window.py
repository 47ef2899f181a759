"""Which collectives this rank has issued, which results it holds, and which collectives it may forget.

    0 ........ released ........ minimum ........ held ........ issued
      forgotten         all ranks                 this rank      pushed or
                        hold it                   holds it       waiting

A contribution is kept until every rank is known to hold the result (`minimum`) and this rank has pushed it
on every link of the epoch. Until then a new epoch may ask for it again (proto/README.md, "Release").
"""

from __future__ import annotations

from dataclasses import dataclass

from reduction import layout
from reduction.model import Collective


@dataclass(slots=True)
class Outstanding:
    """A collective that this rank has issued and not released."""

    collective: Collective
    #: One byte per chunk of the present grid, 1 if its result is here; empty before the first epoch. Once the
    #: collective is delivered, only the length is meaningful.
    here: bytearray
    missing: int
    #: Total bytes of all earlier collectives.
    offset: int = 0
    is_delivered: bool = False
    #: When its first chunk was pushed. The collective's timeout counts from then.
    pushed_at: float | None = None
    #: When its first chunk was pushed or its latest result arrived, whichever was later.
    moved_at: float = 0.0


class Window:
    """The collectives from `released` to `issued`, and the bounds in between."""

    def __init__(self) -> None:
        self.released = 0
        self.minimum = 0
        self.held = 0
        self.issued = 0
        self.outstanding: dict[int, Outstanding] = {}
        self.chunk_bytes = 0
        self._issued_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether this rank holds everything it has issued."""
        return self.held == self.issued

    def issue(self, collective: Collective) -> None:
        """Add the next collective."""
        issue = Outstanding(collective, bytearray(), 0, self._issued_bytes)
        self._issued_bytes += layout.charge(collective.nbytes)
        self._cut(issue)
        self.outstanding[self.issued] = issue
        self.issued += 1

    def regrid(self, chunk_bytes: int) -> None:
        """Use another grid. Partial results are discarded, because the chunk boundaries differ."""
        if chunk_bytes == self.chunk_bytes:
            return
        self.chunk_bytes = chunk_bytes
        for issue in self.outstanding.values():
            self._cut(issue)

    def _cut(self, issue: Outstanding) -> None:
        if self.chunk_bytes:
            collective = issue.collective
            issue.missing = layout.chunk_count(collective.numel, collective.dtype.itemsize, self.chunk_bytes)
            issue.here = bytearray(issue.missing)

    def needs(self, seq: int, chunk: int) -> bool:
        """Return whether a chunk's result is missing. A new epoch sends results again that are already here."""
        issue = self.outstanding.get(seq)
        return issue is not None and not issue.is_delivered and not issue.here[chunk]

    def take(self, seq: int, chunk: int) -> bool:
        """Record the result of a chunk that `needs` reported missing; return whether `seq` is now complete.

        `held` advances to the first collective that is not complete.
        """
        issue = self.outstanding[seq]
        issue.here[chunk] = 1
        issue.missing -= 1
        if issue.missing:
            return False
        issue.is_delivered = True
        while self.held < self.issued and self.outstanding[self.held].is_delivered:
            self.held += 1
        return True

    def release(self, bound: int) -> range:
        """Forget the collectives below `bound` whose results all ranks hold, and return their numbers."""
        first, self.released = self.released, max(self.released, min(self.minimum, bound))
        gone = range(first, self.released)
        for seq in gone:
            del self.outstanding[seq]
        return gone
