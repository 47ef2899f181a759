"""Hierarchical mode: what becomes of a node's other ranks. A thread hears of it; nothing is sent while all is well.

a neighbour's process ends     WorkerLost at once, unless it has left
it has failed                  its error
it has left                    PeerLeft, if this rank has collectives that it takes no part in
this rank waits for others     after `stall_warn_s` it tells them, and so learns which of them wait as well: the lowest
                               that waits warns of those that do not, and each that is late warns of itself;
                               after `timeout_s` CollectiveTimeout, which names them
the rail fails                 its error, with nothing in flight as well
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from reduction.errors import CollectiveTimeout, PeerLeft, ReductionError, WorkerLost, from_code

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.nodes import Node
from worker_plugin.hierarchy.neighbours import Ended, Kind, Neighbours, Note

log = logging.getLogger(__name__)

#: How often the thread looks at the clock, in seconds.
WATCH_S = 0.25


class Watched(Protocol):
    """Who is told, and asked."""

    @property
    def error(self) -> ReductionError | None:
        """What has ended the communicator."""
        ...

    @property
    def issued(self) -> int:
        """How many collectives there were."""
        ...

    def first_from(self, seq: int) -> int | None:
        """Return the first collective from `seq` on that is not done."""
        ...

    def fail(self, error: ReductionError, tell: Kind | None = None) -> None:
        """End with an error, and tell the neighbours if they do not know."""
        ...


class Watch:
    """Of one rank; `run` is a thread's, `wait` and `stop` are any thread's."""

    def __init__(self, config: PluginConfig, node: Node, neighbours: Neighbours, owner: Watched) -> None:
        self._config = config
        self._node = node
        self._neighbours = neighbours
        self._owner: Watched | None = owner
        self._over = threading.Event()
        #: Collective that this rank waits in for its neighbours, and since when.
        self._waiting: tuple[int, float] | None = None
        #: By local rank: the collective it says it waits in; how many collectives one that left takes part in.
        self._waits: dict[int, int] = {}
        self._left: dict[int, int] = {}
        #: The last collective that was warned of.
        self._warned = -1

    def wait(self, seq: int | None) -> None:
        """Take note that this rank begins to wait for its neighbours in a collective; None: they have come."""
        self._waiting = None if seq is None else (seq, time.monotonic())

    def stop(self) -> None:
        """Let `run` return."""
        self._over.set()
        self._neighbours.wake()

    def run(self) -> None:
        """Listen until the end."""
        try:
            while not self._over.is_set() and self._owner is not None:
                self._look(self._owner, self._neighbours.listen(WATCH_S), time.monotonic())
        finally:
            self._owner = None  # it refers to us
            self._neighbours.close()

    def _look(self, owner: Watched, news: list[Note | Ended], now: float) -> None:
        for one in news:
            self._hear(owner, one)
        for local_rank, number in self._left.items():
            if (late := owner.first_from(number)) is not None:
                name, me = self._node.name(local_rank), self._node.name(self._node.local_rank)
                owner.fail(PeerLeft(f"{name} closed, but {me} still issued collective {late}: see its log"))
        if (error := owner.error) is not None:
            owner.fail(error, Kind.FAILED)
        if self._waiting is not None:
            self._check_wait(owner, *self._waiting, now)

    def _hear(self, owner: Watched, news: Note | Ended) -> None:
        match news:
            case Ended(local_rank):
                if local_rank not in self._left:
                    owner.fail(
                        WorkerLost(f"{self._node.name(local_rank)} is gone: its process has ended"), None
                    )
            case Note(kind=Kind.FAILED):
                owner.fail(from_code(news.code, news.text))
            case Note(kind=Kind.LEFT):
                self._left[news.local_rank] = news.number
            case Note(kind=Kind.WAITS):
                self._waits[news.local_rank] = news.number
                if owner.issued <= news.number and self._warned < news.number:
                    self._warned = news.number
                    me = self._node.name(self._node.local_rank)
                    log.warning(
                        "other ranks of this node wait for this one, %s, to issue collective %d",
                        me,
                        news.number,
                    )

    def _check_wait(self, owner: Watched, seq: int, since: float, now: float) -> None:
        me, waited_s = self._node.local_rank, now - since
        if waited_s < self._config.stall_warn_s:
            return
        if self._waits.get(me, -1) < seq:
            self._waits[me] = seq
            self._neighbours.tell(Kind.WAITS, number=seq)
            return
        waiting = [rank for rank in range(self._node.size) if self._waits.get(rank, -1) >= seq]
        missing = [self._node.name(rank) for rank in range(self._node.size) if rank not in waiting]
        names = (
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'}" if missing else "an exchange is"
        )
        late = f"{names} late by {waited_s:.0f} s: collective {seq} waits for that in the node"
        if waited_s >= self._config.timeout_s:
            advice = f"see the log there, or raise timeout_s ({self._config.timeout_s:g} s)"
            owner.fail(CollectiveTimeout(f"{late}; {advice}"), Kind.FAILED)
        elif (
            self._warned < seq and waited_s >= self._config.stall_warn_s + 2 * WATCH_S
        ):  # all have said so by now
            self._warned = seq
            if waiting[0] == me:
                log.warning("%s", late)
