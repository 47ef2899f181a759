"""The present epoch as a rank sees it: its configuration, the Hellos, the pushes, and what may be forgotten.

event              what follows
new configuration  stop pushing, and receiving into results' memory; Hello to every member whose stream stands,
                   or comes to stand
Start              push again everything from its minimum on, then go on with new collectives
Result             must answer the oldest push on that link; store, deliver, acknowledge
minimum            forget contributions that everybody is done with, while all members have started
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
        instance: of the job's life, empty while it is not known.
        roster: its links.
        window: its collectives.
        actions: those of the core; what follows is added to them.
        target: the latency that the credit is adapted to; None leaves the credit at what was
            granted.
        host: on which this rank runs, as `Place` has it.
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
        #: Keeps the present epoch's lanes together; None before the first epoch.
        self._convoy: Convoy | None = None
        self.instance = instance
        self.roster = roster
        self.window = window
        self.configuration: Configuration | None = None
        #: How often a configuration had other members, or other shares, than the one before.
        self.resharded = 0
        #: Since when a stream of this epoch is known to have broken; None while all stand.
        self.broken_since: float | None = None
        #: Since when this epoch has waited for a Start of all its members; None once all have come.
        self.unstarted_since: float | None = None
        #: When to acknowledge without a push.
        self.ack_due: float | None = None

    @property
    def number(self) -> int:
        """The present epoch, 0 before the first."""
        return 0 if self.configuration is None else self.configuration.epoch

    @property
    def size(self) -> int:
        """How many reducers are members of the present epoch, 0 before the first."""
        return 0 if self.configuration is None else len(self.configuration.members)

    @property
    def is_calm(self) -> bool:
        """Whether an epoch has started and, as far as this rank knows, all its streams are open."""
        return self._has_started and self.broken_since is None

    def enter(self, configuration: Configuration, now: float) -> None:
        """Stop pushing, take the configuration, say Hello to all its members."""
        if self.instance and configuration.instance != self.instance:
            raise StaleInstance("a configuration of another life of this job arrived")
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
                link.leave_lane()
                self._actions.append(Divert(link.id))
        for link in self.roster:
            self.greet(link)
            self.leave(link, now)

    @property
    def _is_mixed(self) -> bool:
        """Whether some of the members, but not all, are on this rank's own host."""
        hosts = {link.place.host for link in self.roster if link.is_up and self.is_member(link)}
        return len(hosts) > 1 and self._host in hosts - {b""}

    def greet(self, link: Link) -> None:
        """Say Hello if the link is a member: in a new epoch, or on a new stream.

        On a new stream it counts only if the epoch has not started there. If it has, pushes on the
        old stream may be lost, and rank 0, which sees the loss as well, makes a new epoch.
        """
        if self.configuration is None or not link.is_up or not self.is_member(link):
            return
        link.hello_epoch = self.configuration.epoch
        link.acked = self.window.held
        self._actions.append(Send(link.id, Hello(self.configuration, self.window.held)))

    def leave(self, link: Link, now: float) -> None:
        """Hang up on a draining reducer that is not a member: it waits for us to leave. Dialling it goes on."""
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
        """Take a Start: the member asks for all collectives from `minimum` on.

        Raises:
            OutOfOrder: the member may not ask for that.
        """
        configuration = self.configuration
        if configuration is None or epoch != configuration.epoch:
            return  # it is of an epoch that this rank has left
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
            target_s = self._target.target_s
            credit = Credit(configuration.chunk_bytes, link.credit_bytes, target_s, link.credit_before)
        link.lane = Lane(configuration, index, link.credit_bytes, minimum, credit, self._convoy)
        if self._has_started:
            self.unstarted_since = None
        self._update_convoy()
        self.push_on(link, now)
        self.on_minimum(minimum)

    def on_result(self, link: Link, result: Result, now: float) -> None:
        """Take a chunk's result: store it, deliver, acknowledge, and push what the credit then allows.

        Raises:
            OutOfOrder: it is not the result that must come next.
        """
        if self.configuration is None or result.epoch != self.configuration.epoch:
            return  # it is of an epoch that this rank has left; the new one brings it again
        lane, convoy = link.lane, self._convoy
        assert convoy is not None  # it comes with the configuration
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
        """Record that every rank holds all collectives below `minimum`, and release what nobody can ask for."""
        self.window.minimum = max(self.window.minimum, min(minimum, self.window.held))
        if self.window.released < self.window.minimum:
            self._release()

    def push_all(self, now: float, *, triggered_at: float | None = None) -> None:
        """Push what every link's credit allows, a chunk to each in turn.

        Every rank begins at another member. If all began at the first one, its link would get the
        data of n links at once and drop most of it (incast).
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
        """Record where all lanes are."""
        if self._convoy is None or not self._convoy.is_needed:
            return
        lanes = [link.lane for link in self.roster if link.lane is not None]
        for lane in lanes:
            lane.find(self.window)
        self._convoy.update(lanes)

    def acknowledge(self) -> None:
        """Tell every member what this rank holds, unless a push has told it already."""
        self.ack_due = None
        for link in self.roster:
            if link.lane is not None and link.acked < self.window.held:
                link.acked = self.window.held
                self._actions.append(Send(link.id, Ack(self.window.held)))

    def _release(self) -> None:
        """Release contributions, but only while every member has started the epoch and has got this rank's pushes."""
        if self._has_started:
            bound = min(link.lane.seq for link in self.roster if link.lane is not None)
            self._actions += [Release(seq) for seq in self.window.release(bound)]

    @property
    def _has_started(self) -> bool:
        """Whether every member has sent Start, and none has been lost since."""
        lanes = sum(link.lane is not None for link in self.roster)
        return self.configuration is not None and lanes == len(self.configuration.members)
