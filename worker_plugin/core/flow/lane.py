"""The pushes of one epoch on one stream: their order, and how far they may run ahead of the results.

All ranks push the same chunks to one reducer in the same order, and the reducer finishes them in
that order. So results come back in the order of the pushes, credit cannot deadlock, and a result
out of order is an error.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from reduction import layout
from reduction.model import Configuration

from worker_plugin.core.flow.convoy import Convoy
from worker_plugin.core.flow.credit import Credit
from worker_plugin.core.window import Window


class Pending(NamedTuple):
    """A push whose result has not arrived: bytes [start, stop) of collective `seq`."""

    seq: int
    chunk: int
    start: int
    stop: int
    cost: int
    #: When the result that triggered this push arrived; None if no result triggered it.
    triggered_at: float | None
    #: Its position in the order of all pushes, as defined in flow/convoy.py.
    place: float


class Lane:
    """The next push to one member of a configuration, and the credit for it.

    Args:
        configuration: the epoch's.
        index: the member's index in it.
        credit_bytes: the credit that the reducer granted.
        first: the first collective to push.
        credit: the part of the grant that is used, adapted as results arrive; None: all of it.
        convoy: that of all lanes of the epoch; None lets this one run on its own.
    """

    def __init__(
        self,
        configuration: Configuration,
        index: int,
        credit_bytes: int,
        first: int,
        credit: Credit | None = None,
        convoy: Convoy | None = None,
    ) -> None:
        self.weights = configuration.weights
        self._chunk_bytes = configuration.chunk_bytes
        self.index = index
        self.credit = credit
        self._convoy = Convoy(configuration) if convoy is None else convoy
        self.credit_bytes = credit_bytes
        self.pending: deque[Pending] = deque()
        self.in_flight = 0
        #: When its latest result arrived.
        self.moved_at = -math.inf
        #: The next push is chunk `_chunk` of collective `seq`. The member's chunks of it end before `_stop`.
        self.seq = first
        self._chunk = self._stop = 0
        #: Bytes of collective `seq`, or -1 until it is issued, and bytes of one of its chunks.
        self._nbytes = -1
        self._grid_bytes = 0
        #: The position of the next push, and the distance between successive pushes of the collective.
        self._place = self._stride = 0.0

    @property
    def weight(self) -> int:
        """The member's share of every collective, from the configuration."""
        return self.weights[self.index]

    @property
    def oldest(self) -> float:
        """The position of the oldest chunk whose result has not arrived; infinite if there is none."""
        if self.pending:
            return self.pending[0].place
        return self._place if self._chunk < self._stop else math.inf

    def find(self, window: Window) -> bool:
        """Find the next push; return whether there is one."""
        while self._chunk >= self._stop:
            if self._nbytes >= 0:
                self.seq += 1
                self._nbytes = -1
            if self.seq >= window.issued:
                return False
            issue = window.outstanding[self.seq]
            self._nbytes = issue.collective.nbytes
            self._grid_bytes = layout.grid_bytes(self._nbytes, self._chunk_bytes)
            run = layout.deal(len(issue.here), self.weights, self.seq)[self.index]
            self._chunk, self._stop = run.start, run.stop
            self._place = issue.offset
            self._stride = self._nbytes / max(len(run), 1)
        return True

    def next_push(self, window: Window, triggered_at: float | None = None) -> Pending | None:
        """Return the next push that credit and convoy allow, and count it, or return None."""
        if not self.find(window) or self._place > self._convoy.limit:
            return None
        start = self._chunk * self._grid_bytes
        stop = min(start + self._grid_bytes, self._nbytes)
        cost = layout.charge(stop - start)
        if self.pending and not self._allows(cost):
            return None
        if self.credit is not None and not self.pending and triggered_at is None:
            self.credit.on_idle()
        push = Pending(
            self.seq, self._chunk, start, stop, cost, triggered_at if self.credit else None, self._place
        )
        self._chunk += 1
        self._place += self._stride
        self.pending.append(push)
        self.in_flight += cost
        return push

    def _allows(self, cost: int) -> bool:
        if self.credit is not None and self.in_flight + cost // 2 > self.credit.usable_bytes:
            return False  # half a chunk more is allowed: the credit is a goal, and the grant is the limit
        return self.in_flight + cost <= self.credit_bytes

    def on_result(self, seq: int, chunk: int, now: float = 0.0) -> Pending | None:
        """Return the credit of the oldest push, and return the push, or None if this is not its result."""
        if not self.pending or self.pending[0][:2] != (seq, chunk):
            return None
        push = self.pending.popleft()
        self.in_flight -= push.cost
        self.moved_at = now
        if self.credit is not None:
            latency_s = None if push.triggered_at is None else now - push.triggered_at
            self.credit.on_result(push.cost, latency_s, now)
        return push
