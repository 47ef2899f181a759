"""Hierarchical mode: a thread that watches the other ranks of the node. Nothing is sent while all is well.

a neighbour's process ends     WorkerLost immediately, unless it has left
it has failed                  its error
it has left                    PeerLeft, if this rank has collectives that it takes no part in
this rank waits for others     after `stall_warn_s` it tells them, and so learns which of them wait as well: the lowest
                               rank that waits warns of those that do not, and each late rank warns of itself; after
                               `timeout_s` CollectiveTimeout, which names them
the rail fails                 its error, even with nothing in flight
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from reduction.errors import CollectiveTimeout, PeerLeft, ReductionError, WorkerLost, from_code
from reduction.log_limit import LINES

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.nodes import Node
from worker_plugin.hierarchy.neighbours import Ended, Kind, Neighbours, Note

log = logging.getLogger(__name__)

#: How often the thread checks the clock, in seconds.
WATCH_S = 0.25


class WatchOwner(Protocol):
    """The communicator that a `Watch` queries and notifies."""

    @property
    def error(self) -> ReductionError | None:
        """The error that ended the communicator."""
        ...

    @property
    def issued(self) -> int:
        """Number of collectives that have been issued."""
        ...

    def first_from(self, seq: int) -> int | None:
        """Return the first collective from `seq` on that is not done, or None if there is none."""
        ...

    def fail(self, error: ReductionError, tell: Kind | None = None) -> None:
        """End with an error; `tell` is the kind of note for the neighbours, None if they already know."""
        ...


class Watch:
    """Watches the neighbours of one rank. `run` is called by one thread, `wait` and `stop` by any."""

    def __init__(self, config: PluginConfig, node: Node, neighbours: Neighbours, owner: WatchOwner) -> None:
        self._config = config
        self._node = node
        self._neighbours = neighbours
        self._owner: WatchOwner | None = owner
        self._over = threading.Event()
        #: The collective in which this rank is waiting for its neighbours, and since when.
        self._waiting: tuple[int, float] | None = None
        #: By local rank: the collective in which it reports that it waits, and the number of collectives in which a
        #: rank that left took part.
        self._waits: dict[int, int] = {}
        self._left: dict[int, int] = {}
        #: The last collective that a warning was logged for.
        self._warned = -1

    def wait(self, seq: int | None) -> None:
        """Record that this rank begins to wait for its neighbours in a collective; None if it no longer waits."""
        self._waiting = None if seq is None else (seq, time.monotonic())

    def stop(self) -> None:
        """Make `run` return."""
        self._over.set()
        self._neighbours.wake()

    def run(self) -> None:
        """Listen until the end."""
        try:
            while not self._over.is_set() and self._owner is not None:
                self._look(self._owner, self._neighbours.listen(WATCH_S), time.monotonic())
        finally:
            self._owner = None  # it refers to this object: a cycle
            self._neighbours.close()

    def _look(self, owner: WatchOwner, news: list[Note | Ended], now: float) -> None:
        for item in news:
            self._take(owner, item)
        for local_rank, number in self._left.items():
            if (late := owner.first_from(number)) is not None:
                name, me = self._node.name(local_rank), self._node.name(self._node.local_rank)
                owner.fail(PeerLeft(f"{name} closed, but {me} still issued collective {late}: see its log"))
        if (error := owner.error) is not None:
            owner.fail(error, Kind.FAILED)
        if self._waiting is not None:
            self._check_wait(owner, *self._waiting, now)

    def _take(self, owner: WatchOwner, news: Note | Ended) -> None:
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
                    text = "other ranks of this node are waiting for this one, %s, to issue collective %d"
                    LINES.log(log, logging.WARNING, "waits", me, text, me, news.number)

    def _check_wait(self, owner: WatchOwner, seq: int, since: float, now: float) -> None:
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
        late = f"{names} late by {waited_s:.0f} s: collective {seq} is waiting for this in the node"
        if waited_s >= self._config.timeout_s:
            advice = f"see the log there, or raise timeout_s ({self._config.timeout_s:g} s)"
            owner.fail(CollectiveTimeout(f"{late}; {advice}"), Kind.FAILED)
        elif (
            self._warned < seq and waited_s >= self._config.stall_warn_s + 2 * WATCH_S
        ):  # all have reported it by now
            self._warned = seq
            if waiting[0] == me:
                log.warning("%s", late)
