"""One rank's side of the protocol.

This module is the table of its states and events, so it is longer than others.

state     meaning                                              left by
open      collectives may be issued                            Close; Leave, once all are done; an error
closing   all results are here; others may still need us       the minimum covers all; a peer left; time
failing   this rank has failed, and no other knows it yet      all ranks are there and learn it; time
closed    Goodbye was sent                                     -
failed    an error ended it; all reducers were told            -

While failing, a rank dials and joins as usual, but takes no part in epochs. The others wait for it, and
learn the reason when the first epoch would begin, or when a reducer is back.

event                  what follows
Welcome                Hello, if the reducer is a member (epochs.py)
Peers                  the ranks that this reducer sees: input of `judge` (membership/judge.py)
Waiting                the ranks it waits for: for warnings and timeouts (waiting/stalls.py)
Configure (newer)      enter the epoch (epochs.py); dial the reducers that rank 0 has found (roster.py)
Start, Result, Minimum see epochs.py; Began when the first epoch has all of its Starts
Abort, on a live link  fail with that error, and tell the other reducers; for damaged data: stream lost
Abort, on a Join       dial again or fail (roster.py); the same if TLS or a proxy refuses it
stream lost            dial again; a member's stream is a reason for a new epoch
Tick                   dial, judge, acknowledge, time out; rank 0 may change the grid (leader.py)
FellBack               dial the reducer that rank 0 started because none was left
Found                  dial the addresses found now (roster.py); rank 0 tells the others, once a reducer is there
NoFallback             fail, unless a reducer is back or nothing is in flight
Broke                  fail with that error, and tell the reducers; failing, if no other rank could be told
Connect                wait for the first epoch as if a collective were in flight
Close                  fail what is in flight; wait until no rank needs this one, then send Goodbye
Leave                  once nothing is in flight, the same as Close
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping

from reduction.errors import (
    ClosedError,
    DataCorrupted,
    OutOfOrder,
    PeerLeft,
    ProtocolError,
    ReductionError,
    Unauthenticated,
    code_to_others,
    from_code,
)
from reduction.limits import CREDIT_BYTES_ASKED
from reduction.model import (
    Abort,
    Collective,
    Configure,
    Goodbye,
    Join,
    LinkRate,
    Minimum,
    Peers,
    Result,
    Start,
    Waiting,
    Welcome,
)
from reduction.pacing import UNPACED, Pacing, Sent

from worker_plugin.core.actions import (
    INFO,
    WARNING,
    Action,
    Began,
    Closed,
    Embed,
    Fail,
    Log,
    LookUp,
    Send,
    Shut,
    Throttle,
)
from worker_plugin.core.epochs import Epochs
from worker_plugin.core.events import (
    Broke,
    Close,
    Connect,
    Event,
    FellBack,
    Found,
    Issued,
    Leave,
    NoFallback,
    Received,
    StreamLost,
    Tick,
)
from worker_plugin.core.identity import Identity
from worker_plugin.core.leader import Leader
from worker_plugin.core.link import Link, LinkPhase
from worker_plugin.core.membership.judge import FallBack, GiveUp, Keep, Reconfigure, Verdict, View, judge
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.waiting.patience import Patience
from worker_plugin.core.waiting.stalls import Stalls
from worker_plugin.core.window import Window
from worker_plugin.core.words import DRAINING


class State(enum.Enum):
    """Phase of the communicator."""

    OPEN = "open"
    CLOSING = "closing"
    FAILING = "failing"
    CLOSED = "closed"
    FAILED = "failed"


class RankCore:
    """The complete protocol state of a rank. The actions of each event must be performed in order.

    Args:
        identity: this rank's.
        addresses: of the reducers.
        looked_up: the addresses that may change later.
    """

    def __init__(self, identity: Identity, addresses: Iterable[str], looked_up: Collection[str] = ()) -> None:
        self.identity = identity
        #: The actions that follow from the present event. All parts of the core append to this very list, so it must
        #: never be replaced.
        self._actions: list[Action] = []
        self.roster = Roster(addresses, self._actions, looked_up)
        self.window = Window()
        target = identity.target if identity.credit_bytes is None else None
        self.epochs = Epochs(
            identity.rank,
            identity.instance,
            self.roster,
            self.window,
            self._actions,
            target,
            identity.place.host,
        )
        self.state = State.OPEN
        self.error: ReductionError | None = None
        self.started_at: float | None = None
        self.close_due: float | None = None
        #: Number of issued collectives once no more can be issued; None until then.
        self.last_issued: int | None = None
        self.has_fallen_back = self.awaits_fallback = False
        #: Whether the first epoch has started.
        self.has_begun = False
        #: Whether the user waits for the first epoch to start.
        self.is_awaited = False
        self.pacing = Pacing()
        #: Set on rank 0 only.
        self.leader: Leader | None = None
        if identity.rank == 0:
            parts = self.roster, self.window, self.epochs, self.pacing
            self.leader = Leader(identity, *parts, self._actions)
        #: Whether anything was in flight at the last tick, or has started since.
        self._was_busy = False
        self.patience = Patience(identity.stall_warn_s, self._actions)
        self.stalls = Stalls(
            identity.rank,
            self.roster,
            self.window,
            self._actions,
            stall_warn_s=identity.stall_warn_s,
            timeout_s=identity.timeout_s,
        )

    @property
    def has_checksums(self) -> bool:
        """Whether pushes and results of the present epoch have checksums."""
        return self.epochs.configuration is not None and self.epochs.configuration.checksums

    @property
    def wants_sent(self) -> bool:
        """Whether the next `Tick` should report the data sent, which costs system calls."""
        return self._was_busy or not self.window.is_idle

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle one event at time `now` (seconds, monotonic). Never raises, whatever a peer sent."""
        if self.state in (State.CLOSED, State.FAILED):
            return [Closed()] if isinstance(event, Close) and self.state is State.FAILED else []
        self._actions.clear()  # a bug may have interrupted the last event
        try:
            if self.state is State.FAILING:
                self._dispatch_failing(event, now)
            else:
                self._dispatch(event, now)
        except ReductionError as error:
            self._fail(error)
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    def _dispatch(self, event: Event, now: float) -> None:
        match event:
            case Received(number, frame):
                self._on_frame(self.roster[number], frame, now)
            case Issued(collective):
                self._on_issued(collective, now)
            case StreamLost(number, error):
                self._on_lost(self.roster[number], error, now)
            case Broke(error):
                self._on_broke(error, now)
            case FellBack(address):
                self.roster.add_fallback(address)
                self._fallback_answered(now)
            case NoFallback(error):
                self._fallback_answered(now)
                if self.roster.up:  # one came back, perhaps before rank 0 looked, so there may be a next time
                    self.has_fallen_back = False
                elif not self.window.is_idle:
                    raise error
            case Found(addresses):
                self.roster.on_found(addresses, now)
            case Connect():
                self.is_awaited = not self.has_begun
            case Close():
                self._on_close(now)
            case Leave(issued):
                self.last_issued = issued
                self._close_if_idle(now)
            case Tick(sent):
                self._on_tick(sent, now)

    def _dispatch_failing(self, event: Event, now: float) -> None:
        """Handle an event while failing, only as far as necessary to tell the other ranks."""
        assert self.error is not None
        assert self.close_due is not None
        are_there = False
        match event:
            case Received(number, frame):
                are_there = self._meets_others(self.roster[number], frame, now)
            case StreamLost(number, error):
                self.roster.on_lost(self.roster[number], error, now)
            case Tick():
                self._begin(now)
                self.roster.dial(now, self._join())
                self.roster.update_met_since(self.identity.rank, self.identity.world_size, now)
            case Close():
                self.close_due = min(self.close_due, now + self.identity.close_timeout_s)
        if are_there or now >= self.close_due or isinstance(self._verdict(now), Reconfigure):
            self._fail(self.error)

    def _meets_others(self, link: Link, frame: object, now: float) -> bool:
        """Handle a frame while failing; return whether it shows that all ranks are there, or already know the error."""
        match frame:
            case Welcome() if link.phase is LinkPhase.OPENING:
                self.roster.on_welcome(link, frame, now)
                return self.epochs.number > 0
            case Abort(code, message) if link.phase is LinkPhase.OPENING:
                self.roster.on_refusal(link, from_code(code, message), now, is_running=False)
            case Peers() if link.is_up:
                link.see(frame, now)
        return isinstance(frame, (Abort, Configure)) and link.is_up

    # ---- the user's side ----

    def _on_broke(self, error: ReductionError, now: float) -> None:
        """Fail immediately if the others can be told why. Before the first epoch not all of them are there."""
        if self.state is State.CLOSING:  # all results are here, and none of the user's data is lost
            self._say_goodbye()
            return
        if self.epochs.number and self.roster.up:
            raise error
        self.state = State.FAILING
        self.error = error
        self.close_due = now + self.identity.timeout_s
        self._actions.append(Fail(error, is_over=False))

    def _on_issued(self, collective: Collective, now: float) -> None:
        if self.state is State.CLOSING:  # its copy was under way when the user closed
            self._actions.append(Fail(ClosedError(f"closed before collective {self.window.issued} was sent")))
            self._say_goodbye()
            return
        if (left := self.roster.departed) is not None:
            raise PeerLeft(
                f"rank {left.rank} ({left.host}) closed, but this rank issued collective {self.window.issued}: see "
                f"rank {left.rank}'s log"
            )
        self.window.issue(collective)
        self._was_busy = True
        self.epochs.push_all(now)

    def _on_close(self, now: float) -> None:
        if self.state is State.CLOSING:
            return
        self.state = State.CLOSING
        if not self.window.is_idle:
            count = self.window.issued - self.window.held
            self._actions.append(Fail(ClosedError(f"closed with {count} collectives in flight")))
            self._say_goodbye()
            return
        self.close_due = now + self.identity.close_timeout_s
        self.epochs.acknowledge()
        self._leave_if_done(now)

    def _close_if_idle(self, now: float) -> None:
        """Begin to close if no more can be issued and everything that was issued is done."""
        if self.state is State.OPEN and self.window.held == self.last_issued:
            self._on_close(now)

    def _leave_if_done(self, now: float) -> None:
        """Finish closing if no other rank can still need a contribution of this one."""
        if self.state is not State.CLOSING:
            return
        everybody_done = self.window.minimum >= self.window.issued
        late = self.close_due is not None and now >= self.close_due
        if everybody_done or self.roster.departed is not None or late:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self.state = State.CLOSED
        goodbye = Goodbye(self.window.held, min(self.window.minimum, self.window.issued))
        self._actions += [Send(link.id, goodbye) for link in self.roster.up]
        self._actions.append(Closed())

    # ---- frames ----

    def _on_frame(self, link: Link, frame: object, now: float) -> None:
        if link.phase in (LinkPhase.RETIRED, LinkPhase.DOWN):
            return  # its stream is ending
        if isinstance(frame, Abort):
            self._on_abort(link, frame, now)
            return
        if (link.phase is LinkPhase.OPENING) != isinstance(frame, Welcome):
            raise OutOfOrder(
                f"{link.address} sent {type(frame).__name__} while the link is {link.phase.value}"
            )
        match frame:
            case Result():
                self.epochs.on_result(link, frame, now)
                self._close_if_idle(now)
                self._leave_if_done(now)
            case Minimum(minimum):
                self.epochs.on_minimum(minimum)
                self._leave_if_done(now)
            case Peers():
                was_draining = link.is_draining
                lost = link.see(frame, now)
                if lost and self.epochs.is_member(link):
                    self.epochs.note_broken(now)
                    if self.identity.rank == 0:
                        texts = [f"lost the stream of rank {rank} to {link.address}" for rank in sorted(lost)]
                        self._actions += [Log(INFO, text) for text in texts]
                self.epochs.release(link, now)
                self._judge(now)
                if link.is_draining and not was_draining:
                    self._on_drain(link)
                self._leave_if_done(now)
            case Configure(configuration):
                if configuration.epoch > self.epochs.number:
                    self.epochs.enter(configuration, now)
                    self.roster.on_added(configuration.added, now)
            case Start(epoch, minimum):
                self.epochs.on_start(link, epoch, minimum, now)
                self._begin_once()
                self._leave_if_done(now)
            case Waiting():
                link.waiting = frame
            case LinkRate():
                link.rate = frame.rate
            case Welcome():
                ended_another = self.roster.on_welcome(link, frame, now)
                if ended_another and self.epochs.is_member(link):
                    self.epochs.note_broken(now)
                self.epochs.greet(link)

    def _on_drain(self, link: Link) -> None:
        """Have rank 0 report that no reducer can take over. If one can, the log line of the new epoch reports it."""
        others = [other for other in self.roster if other is not link and not other.is_draining]
        can_leave = any(other.sees_all(self.identity.world_size) for other in others)
        ends = self.state is State.CLOSING or self.roster.departed is not None
        if can_leave or ends or self.identity.rank:
            return
        text = (
            f"{link.address} is {DRAINING}, but no other reducer is available: this job stays until the reducer ends, "
            f"and then waits at most {self.identity.join_timeout_s:g} s (join_timeout_s) for another one, or for this "
            f"one to come back"
        )
        self._actions.append(Log(WARNING, text))

    def _on_abort(self, link: Link, abort: Abort, now: float) -> None:
        error = from_code(abort.code, abort.message)
        if isinstance(error, DataCorrupted):  # the next epoch sends it again
            self._on_lost(link, error, now)
            self._actions.append(Shut(link.id))
            return
        if link.phase is not LinkPhase.OPENING:
            raise error
        self.roster.on_refusal(link, error, now, is_running=self.epochs.number > 0)

    def _on_lost(self, link: Link, error: ReductionError | None, now: float) -> None:
        if link.phase is LinkPhase.RETIRED:
            return
        if isinstance(error, ProtocolError):
            raise error  # dialling again would yield the same bytes
        if isinstance(error, Unauthenticated) and not link.is_up:
            # TLS or a proxy refused us, without an Abort.
            self.roster.on_refusal(link, error, now, is_running=self.epochs.number > 0)
        if link.is_up and self.epochs.is_member(link):
            self.epochs.note_broken(now)
            level = INFO if link.is_draining else WARNING
            self._actions.append(Log(level, f"lost the stream to {link.address}: {_without(link, error)}"))
        self.roster.on_lost(link, error, now)
        self._judge(now)

    def _begin_once(self) -> None:
        configuration = self.epochs.configuration
        if configuration is not None and self.epochs.is_calm and not self.has_begun:
            self.has_begun, self.is_awaited = True, False
            self._actions.append(Began(tuple(member.address for member in configuration.members)))

    # ---- time ----

    def _on_tick(self, sent: Mapping[int, Sent], now: float) -> None:
        self._was_busy = not self.window.is_idle
        self._begin(now)
        self.roster.dial(now, self._join())
        is_first, waits = self.identity.rank == 0, not self.epochs.is_calm
        lacks_some = is_first and waits and self.has_begun and self.identity.on_reducer_loss == "wait"
        if self.roster.wants_look_up(now, may_miss_rank_0=waits and not is_first, lacks_some=lacks_some):
            self._actions.append(LookUp())
        # Before the first epoch, rank 0 would wait for a reducer that no other rank knows.
        if self.identity.rank == 0 and self.has_begun and self.roster.wants_refresh(now):
            self._actions.append(LookUp(everything=True))
        if self.epochs.ack_due is not None and now >= self.epochs.ack_due:
            self.epochs.acknowledge()
        self.stalls.check(now, is_running=self.epochs.is_calm)
        if self.epochs.is_calm:
            self.patience.rest()
        else:
            self.roster.update_met_since(self.identity.rank, self.identity.world_size, now)
            self.patience.check(self._view(now))
        if not (self.epochs.is_calm and self.roster.is_settled):
            self._judge(now)
        self._pace(sent, now)
        if self.leader is not None:
            self.leader.tune(now)
            self.leader.announce(now)
        self._leave_if_done(now)

    def _begin(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = self.roster.alone_since = now

    def _pace(self, sent: Mapping[int, Sent], now: float) -> None:
        """Push at the rate that the links sustain, and report that rate to the reducers."""
        members = [(link, link.lane.weight) for link in self.roster if link.lane is not None]
        total = sum(weight for _, weight in members)
        own_host = self.identity.place.host
        remote = [
            (link, weight / total) for link, weight in members if link.place.host != own_host or not own_host
        ]
        self.pacing.hear([link.rate for link, _ in members])
        known = [(link.id, share) for link, share in remote if link.id in sent]
        if known or (sent and self.epochs.is_calm):  # while an epoch begins, some members are unknown
            self.pacing.look(
                {number: sent[number] for number, _ in known}, sum(share for _, share in known), now
            )
        for link, _ in members:
            if link.told_rate != self.pacing.own:
                link.told_rate = self.pacing.own
                self._actions.append(Send(link.id, LinkRate.of(self.pacing.own)))
        rate = self.pacing.rate
        is_paced = not math.isinf(rate)
        for link, share in remote:
            if is_paced or link.is_paced:
                self._actions.append(Throttle(link.id, int(min(rate, UNPACED) * share)))
            link.is_paced = is_paced
            if link.lane is not None and link.lane.credit is not None:
                link.lane.credit.is_paced = is_paced

    def _join(self) -> Join:
        who = self.identity
        return Join(
            job=who.job,
            instance=self.epochs.instance,
            rank=who.rank,
            world_size=who.world_size,
            nonce=who.nonce,
            host=who.host,
            minimum=self.window.minimum,
            credit_bytes=who.credit_bytes or CREDIT_BYTES_ASKED,
            wire_dtype=who.wire_dtype,
            local_size=who.local_size,
            group=who.group,
            place=who.place,
            named=who.named,
            run=who.run,
            life_port=who.life_port,
        )

    def _verdict(self, now: float) -> Verdict:
        return judge(self._view(now))

    def _view(self, now: float) -> View:
        return View(
            now=now,
            rank=self.identity.rank,
            world_size=self.identity.world_size,
            links=self.roster.links,
            configuration=self.epochs.configuration,
            broken_since=self.epochs.broken_since,
            unstarted_since=self.epochs.unstarted_since,
            alone_since=self.roster.alone_since,
            met_since=self.roster.met_since,
            started_at=self.started_at if self.started_at is not None else now,
            is_idle=self.window.is_idle and not self.is_awaited,
            join_timeout_s=self.identity.join_timeout_s,
            timeout_s=self.identity.timeout_s,
            on_reducer_loss=self.identity.on_reducer_loss,
            may_fall_back=self.identity.may_fall_back and not self.has_fallen_back,
            has_fallen_back=self.has_fallen_back,
            awaits_fallback=self.awaits_fallback,
            goes_on=self.identity.goes_on,
        )

    def _judge(self, now: float) -> None:
        match self._verdict(now):
            case Reconfigure(links, reason, lacks_some) if self.leader is not None:
                self.leader.configure(links, reason, lacks_some=lacks_some, now=now)
            case Keep() if self.window.is_idle and self.epochs.is_calm:
                # Reducers that could take part but were not chosen stay on standby until something changes.
                for link in self.roster.up:
                    link.is_spare = link.sees_all(self.identity.world_size)
            case GiveUp(error) if self.state is not State.CLOSING:
                raise error
            case FallBack(reason) if self.state is not State.CLOSING:
                self.has_fallen_back = self.awaits_fallback = True
                text = f"{reason}; rank 0 starts a reducer on its own host for this job (fallback='embedded')"
                self._actions += [Log(WARNING if self.identity.rank == 0 else INFO, text), Embed()]

    def _fallback_answered(self, now: float) -> None:
        """Wait for the fallback, or for reducers that have come back, as if the wait for reducers began now."""
        self.awaits_fallback = False
        self.started_at = now
        if self.roster.alone_since is not None:  # otherwise a reducer has come back in the meantime
            self.roster.alone_since = now
        if self.epochs.broken_since is not None:
            self.epochs.broken_since = now

    def _fail(self, error: ReductionError) -> None:
        """End with an error here, and through the reducers on all ranks."""
        if self.state is State.CLOSING:  # all results are here, so the others' trouble does not matter
            self.state = State.CLOSED
            self._actions.append(Closed())
            return
        abort = Abort(code_to_others(error), f"rank {self.identity.rank} ({self.identity.host}): {error}")
        self._actions += [Send(link.id, abort) for link in self.roster.up]
        self._actions.append(Closed() if self.state is State.FAILING else Fail(error))
        self.error = error
        self.state = State.FAILED


def _without(link: Link, error: ReductionError | None) -> str:
    """Return why a stream ended, without the address."""
    return str(error or "it ended").removeprefix(f"{link.address}: ")
