"""What this rank has issued, holds, and may forget.

    0 ........ released ........ minimum ........ held ........ issued
      forgotten         everybody                 this rank      pushed or
                        holds it                  holds it       waiting

A contribution stays until every rank is known to hold the result (`minimum`) and this rank has pushed it on
every link of the epoch: until then a new epoch may ask for it again (proto/README.md, "Release").
"""

from __future__ import annotations

from dataclasses import dataclass

from reduction import layout
from reduction.model import Collective


@dataclass(slots=True)
class Outstanding:
    """A collective that is not released."""

    collective: Collective
    #: One byte per chunk on the present grid, 1 where the result is here; empty before the first epoch.
    #: Means nothing once the collective is delivered, but for its length.
    here: bytearray
    missing: int
    is_delivered: bool = False
    #: When its first chunk was pushed; the collective's timeout counts from here.
    pushed_at: float | None = None
    #: When that happened, or the last result came.
    moved_at: float = 0.0


class Window:
    """The collectives between `released` and `issued`, and the marks in between."""

    def __init__(self) -> None:
        self.released = 0
        self.minimum = 0
        self.held = 0
        self.issued = 0
        self.outstanding: dict[int, Outstanding] = {}
        self.chunk_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether this rank holds everything it has issued."""
        return self.held == self.issued

    def issue(self, collective: Collective) -> None:
        """Add the next collective."""
        issue = Outstanding(collective, bytearray(), 0)
        self._cut(issue)
        self.outstanding[self.issued] = issue
        self.issued += 1

    def regrid(self, chunk_bytes: int) -> None:
        """Use another grid; what is here in part is given up, because the borders differ."""
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
        """Whether a chunk's result is missing; after a new epoch, results that are here come again."""
        issue = self.outstanding.get(seq)
        return issue is not None and not issue.is_delivered and not issue.here[chunk]

    def take(self, seq: int, chunk: int) -> bool:
        """Mark a needed chunk's result as here; return whether `seq` is whole now.

        Raises `held` over everything that is held without a gap.
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
        """Forget the collectives that all ranks hold and that lie below `bound`; return them."""
        first, self.released = self.released, max(self.released, min(self.minimum, bound))
        gone = range(first, self.released)
        for seq in gone:
            del self.outstanding[seq]
        return gone
