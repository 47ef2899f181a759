"""The pushes of one epoch on one stream: their order, and how far they may run ahead.

All ranks push the same chunks to one reducer in the same order, and a reducer finishes them in that order;
so results come back in the order of the pushes, credit cannot deadlock, and a result out of turn is an error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from reduction import layout
from reduction.model import Configuration

from worker_plugin.core.window import Window


@dataclass(frozen=True, slots=True)
class Pending:
    """A push whose result has not come."""

    seq: int
    chunk: int
    cost: int


class Lane:
    """Cursor and credit for member `index` of a configuration, from collective `first` on."""

    def __init__(self, configuration: Configuration, index: int, credit_bytes: int, first: int) -> None:
        self.weights = configuration.weights
        self.index = index
        self.credit_bytes = credit_bytes
        #: The next push is chunk number `offset` of this member's run of collective `seq`.
        self.seq = first
        self.offset = 0
        self.pending: deque[Pending] = deque()
        self.in_flight = 0

    def next_push(self, window: Window) -> tuple[int, int, int, int] | None:
        """Return (seq, chunk, start, stop) of the next push that credit allows, and count it; or None."""
        while self.seq < window.issued:
            chunks = len(window.issues[self.seq].here)
            run = layout.deal(chunks, self.weights, self.seq)[self.index]
            if self.offset >= len(run):
                self.seq += 1
                self.offset = 0
                continue
            chunk = run[self.offset]
            start, stop = window.span(self.seq, chunk)
            cost = layout.charge(stop - start)
            if self.pending and self.in_flight + cost > self.credit_bytes:
                return None
            self.offset += 1
            self.pending.append(Pending(self.seq, chunk, cost))
            self.in_flight += cost
            return self.seq, chunk, start, stop
        return None

    def is_next(self, seq: int, chunk: int) -> bool:
        """Whether this chunk is the oldest push, whose result must come next."""
        return bool(self.pending) and (self.pending[0].seq, self.pending[0].chunk) == (seq, chunk)

    def on_result(self, seq: int, chunk: int) -> bool:
        """Give back the credit of the oldest push; return False if this is not its result."""
        if not self.is_next(seq, chunk):
            return False
        self.in_flight -= self.pending.popleft().cost
        return True
