"""The present epoch as a rank sees it: its configuration, the Hellos, the pushes, and what may be forgotten.

event              what follows
new configuration  stop pushing, and receiving into results' memory; send Hello to every member once its stream is up
Start              push again everything from its minimum on, then continue with new collectives
Result             must answer the oldest push on that link; store, deliver, acknowledge
minimum            forget contributions that every rank is done with, while all members have started
"""

from __future__ import annotations

from reduction.errors import OutOfOrder, ReducerDraining, StaleInstance
from reduction.limits import ACK_DELAY_S
from reduction.model import Ack, Configuration, Hello, Result

from worker_plugin.core.actions import Action, Deliver, Divert, PushChunk, Release, Send, Shut, Store
from worker_plugin.core.flow.convoy import Convoy
from worker_plugin.core.flow.credit import Credit, PlaneTarget
from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.link import Link
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.window import Window


class Epochs:
    """The membership and the pushes of one rank.

    Args:
        rank: this rank.
        instance: of the job's life; empty while unknown.
        roster: its links.
        window: its collectives.
        actions: the core's list, which resulting actions are appended to.
        target: the latency that the credit is adapted to; None keeps the credit at the granted value.
        host: the host of this rank, as in `Place`.
    """

    def __init__(
        self,
        rank: int,
        instance: bytes,
        roster: Roster,
        window: Window,
        actions: list[Action],
        target: PlaneTarget | None = None,
        host: bytes = b"",
    ) -> None:
        self._actions = actions
        self._rank = rank
        self._target = target
        self._host = host
        #: Keeps the present epoch's lanes in step; None before the first epoch.
        self._convoy: Convoy | None = None
        self.instance = instance
        self.roster = roster
        self.window = window
        self.configuration: Configuration | None = None
        #: Number of configurations whose members or shares differed from the previous ones.
        self.resharded = 0
        #: Since when a stream of this epoch has been known to be broken; None while all are up.
        self.broken_since: float | None = None
        #: Since when this epoch has been waiting for Start from all its members; None once all have arrived.
        self.unstarted_since: float | None = None
        #: When to acknowledge if no push does it before.
        self.ack_due: float | None = None

    @property
    def number(self) -> int:
        """The present epoch, or 0 before the first."""
        return 0 if self.configuration is None else self.configuration.epoch

    @property
    def size(self) -> int:
        """Number of reducers that are members of the present epoch, or 0 before the first."""
        return 0 if self.configuration is None else len(self.configuration.members)

    @property
    def is_calm(self) -> bool:
        """Whether an epoch has started and, as far as this rank knows, all its streams are open."""
        return self._has_started and self.broken_since is None

    def enter(self, configuration: Configuration, now: float) -> None:
        """Stop pushing, adopt the configuration, and send Hello to all its members."""
        if self.instance and configuration.instance != self.instance:
            raise StaleInstance("received a configuration of another instance of this job")
        self.instance = configuration.instance
        if self.configuration is not None and configuration.members != self.configuration.members:
            self.resharded += 1
        self.configuration = configuration
        self._convoy = Convoy(configuration, is_mixed=self._is_mixed)
        self.broken_since = None
        self.unstarted_since = now
        self.window.regrid(configuration.chunk_bytes)
        for link in self.roster:
            if link.lane is not None:
                link.drop_lane()
                self._actions.append(Divert(link.id))
        for link in self.roster:
            self.greet(link)
            self.release(link, now)

    @property
    def _is_mixed(self) -> bool:
        """Whether some of the members, but not all, are on this rank's own host."""
        hosts = {link.place.host for link in self.roster if link.is_up and self.is_member(link)}
        return len(hosts) > 1 and self._host in hosts - {b""}

    def greet(self, link: Link) -> None:
        """Send Hello if the link is a member: in a new epoch, or on a new stream.

        On a new stream the Hello counts only if the epoch has not started there. If it has, pushes on the old
        stream may be lost, and rank 0, which also sees the loss, creates a new epoch.
        """
        if self.configuration is None or not link.is_up or not self.is_member(link):
            return
        link.hello_epoch = self.configuration.epoch
        link.acked = self.window.held
        self._actions.append(Send(link.id, Hello(self.configuration, self.window.held)))

    def release(self, link: Link, now: float) -> None:
        """Disconnect from a draining reducer that is not a member and waits for us to leave. Dialling continues."""
        if self.configuration is not None and link.is_up and link.is_draining and not self.is_member(link):
            self.roster.on_lost(link, ReducerDraining(f"{link.address} is draining"), now)
            self._actions.append(Shut(link.id))

    def is_member(self, link: Link) -> bool:
        """Whether the link leads to a member of the present configuration."""
        return self.configuration is not None and self.configuration.index_of(link.incarnation) is not None

    def note_broken(self, now: float) -> None:
        """Record that a stream of this epoch has broken."""
        if self.broken_since is None:
            self.broken_since = now

    def on_start(self, link: Link, epoch: int, minimum: int, now: float) -> None:
        """Process a Start: the member asks for all collectives from `minimum` on.

        Raises:
            OutOfOrder: the member may not ask for that.
        """
        configuration = self.configuration
        if configuration is None or epoch != configuration.epoch:
            return  # it belongs to an epoch that this rank has left
        index = configuration.index_of(link.incarnation)
        if index is None or link.hello_epoch != epoch or link.lane is not None:
            raise OutOfOrder(f"{link.address} started epoch {epoch} without this rank's Hello, or twice")
        if not self.window.released <= minimum <= self.window.held:
            raise OutOfOrder(
                f"{link.address} asks for collectives from {minimum} on; this rank has "
                f"{self.window.released} to {self.window.held}"
            )
        credit = None
        if self._target is not None:
            credit = Credit(configuration.chunk_bytes, link.credit_bytes, self._target, link.credit_before)
        link.lane = Lane(configuration, index, link.credit_bytes, minimum, credit, self._convoy)
        if self._has_started:
            self.unstarted_since = None
        self._update_convoy()
        self.push_on(link, now)
        self.on_minimum(minimum)

    def on_result(self, link: Link, result: Result, now: float) -> None:
        """Process a chunk's result: store it, deliver, acknowledge, and push what the credit then allows.

        Raises:
            OutOfOrder: it is not the next expected result.
        """
        if self.configuration is None or result.epoch != self.configuration.epoch:
            return  # it belongs to an epoch that this rank has left; the new one sends it again
        lane, convoy = link.lane, self._convoy
        assert convoy is not None  # it is created with the configuration
        holds_up = lane is not None and convoy.holds_up(lane)
        push = None if lane is None else lane.on_result(result.seq, result.chunk, now)
        if push is None:
            raise OutOfOrder(
                f"{link.address} sent chunk {result.chunk} of collective {result.seq}, "
                f"which is not this rank's oldest push there"
            )
        if self.window.needs(result.seq, result.chunk):
            issue = self.window.outstanding[result.seq]
            issue.moved_at = now
            dtype = issue.collective.dtype
            if not dtype.format.is_result(result.payload.nbytes, push.stop - push.start):
                raise OutOfOrder(
                    f"{link.address} sent {result.payload.nbytes} bytes for chunk {result.chunk} of collective "
                    f"{result.seq}, which has {dtype.format.result_bytes(push.stop - push.start)}"
                )
            self._actions.append(Store(result.seq, push.start, push.stop, result.payload))
            if self.window.take(result.seq, result.chunk):
                self._actions.append(Deliver(result.seq))
                if self.ack_due is None:
                    self.ack_due = now + ACK_DELAY_S
        if holds_up:
            self.push_all(now, triggered_at=now)
        else:
            self.push_on(link, now, triggered_at=now)
        self.on_minimum(result.minimum)

    def on_minimum(self, minimum: int) -> None:
        """Record that every rank holds all collectives below `minimum`, and release what no reducer can ask for."""
        self.window.minimum = max(self.window.minimum, min(minimum, self.window.held))
        if self.window.released < self.window.minimum:
            self._release()

    def push_all(self, now: float, *, triggered_at: float | None = None) -> None:
        """Push what every link's credit allows, one chunk to each link in turn.

        Each rank begins at a different member. If all began at the first one, its link would get the data of n links
        simultaneously and drop most of it (incast).
        """
        self._update_convoy()
        links = [link for link in self.roster if link.lane is not None]
        first = self._rank % len(links) if links else 0
        links = links[first:] + links[:first]
        while links:
            links = [link for link in links if self._push(link, now, triggered_at=triggered_at)]

    def push_on(self, link: Link, now: float, *, triggered_at: float | None = None) -> None:
        """Push what the link's credit allows."""
        while self._push(link, now, triggered_at=triggered_at):
            pass

    def _push(self, link: Link, now: float, *, triggered_at: float | None = None) -> bool:
        """Push the link's next chunk, if there is one and credit for it."""
        lane, configuration = link.lane, self.configuration
        assert lane is not None  # all callers have checked that
        assert configuration is not None  # a lane belongs to a configuration
        push = lane.next_push(self.window, triggered_at)
        if push is None:
            return False
        issue = self.window.outstanding[push.seq]
        if issue.pushed_at is None:
            issue.pushed_at = issue.moved_at = now
        held = link.acked = self.window.held
        collective = issue.collective
        self._actions.append(
            PushChunk(
                link.id,
                configuration.epoch,
                push.seq,
                push.chunk,
                collective,
                held,
                push.start,
                push.stop,
                self.window.needs(push.seq, push.chunk),
            )
        )
        return True

    def _update_convoy(self) -> None:
        """Record the positions of all lanes."""
        if self._convoy is None or not self._convoy.is_needed:
            return
        lanes = [link.lane for link in self.roster if link.lane is not None]
        for lane in lanes:
            lane.find(self.window)
        self._convoy.update(lanes)

    def acknowledge(self) -> None:
        """Tell every member what this rank holds, unless a push has already done so."""
        self.ack_due = None
        for link in self.roster:
            if link.lane is not None and link.acked < self.window.held:
                link.acked = self.window.held
                self._actions.append(Send(link.id, Ack(self.window.held)))

    def _release(self) -> None:
        """Release contributions, but only while every member has started the epoch and received this rank's pushes."""
        if self._has_started:
            bound = min(link.lane.seq for link in self.roster if link.lane is not None)
            self._actions += [Release(seq) for seq in self.window.release(bound)]

    @property
    def _has_started(self) -> bool:
        """Whether every member has sent Start, and none has been lost since."""
        lanes = sum(link.lane is not None for link in self.roster)
        return self.configuration is not None and lanes == len(self.configuration.members)
