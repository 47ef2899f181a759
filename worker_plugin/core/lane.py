"""The pushes of one epoch on one stream: their order, and how far they may run ahead.

All ranks push the same chunks to one reducer in the same order, and a reducer finishes them in that order;
so results come back in the order of the pushes, credit cannot deadlock, and a result out of turn is an error.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from reduction import layout
from reduction.model import Configuration

from worker_plugin.core.window import Window


class Pending(NamedTuple):
    """A push whose result has not come: bytes [start, stop) of collective `seq`."""

    seq: int
    chunk: int
    start: int
    stop: int
    cost: int


class Lane:
    """Cursor and credit for member `index` of a configuration, from collective `first` on."""

    def __init__(self, configuration: Configuration, index: int, credit_bytes: int, first: int) -> None:
        self.weights = configuration.weights
        self.chunk_bytes = configuration.chunk_bytes
        self.index = index
        self.credit_bytes = credit_bytes
        self.pending: deque[Pending] = deque()
        self.in_flight = 0
        #: The next push is chunk `chunk` of collective `seq`; this member's run there ends before `stop`.
        self.seq = first
        self._chunk = self._stop = 0
        #: Bytes of collective `seq`; -1 until it is issued.
        self._nbytes = -1

    def next_push(self, window: Window) -> Pending | None:
        """Return the next push that credit allows, and count it; or None."""
        while self._chunk >= self._stop:
            if self._nbytes >= 0:
                self.seq += 1
                self._nbytes = -1
            if self.seq >= window.issued:
                return None
            issue = window.issues[self.seq]
            self._nbytes = issue.collective.nbytes
            run = layout.deal(len(issue.here), self.weights, self.seq)[self.index]
            self._chunk, self._stop = run.start, run.stop
        start = self._chunk * self.chunk_bytes
        stop = min(start + self.chunk_bytes, self._nbytes)
        cost = layout.charge(stop - start)
        if self.pending and self.in_flight + cost > self.credit_bytes:
            return None
        push = Pending(self.seq, self._chunk, start, stop, cost)
        self._chunk += 1
        self.pending.append(push)
        self.in_flight += cost
        return push

    def oldest(self, seq: int, chunk: int) -> Pending | None:
        """Return the oldest push, whose result must come next, if this is it."""
        if self.pending and self.pending[0][:2] == (seq, chunk):
            return self.pending[0]
        return None

    def on_result(self, seq: int, chunk: int) -> Pending | None:
        """Give back the credit of the oldest push and return it; None if this is not its result."""
        oldest = self.oldest(seq, chunk)
        if oldest is not None:
            self.pending.popleft()
            self.in_flight -= oldest.cost
        return oldest
