"""One rank's side of the protocol: epochs, pushes, acknowledgements, the end. Nothing else changes them.

phase     what it means                                        left by
open      collectives may be issued                            Close, or an error
closing   all results are here; others may still need us       the minimum covers all; a peer left; time
closed    Goodbye was sent                                     -
failed    an error ended it; all reducers have heard it        -

event                  what follows
Welcome                link is up; Hello if it is a member that has not heard one in this epoch
Peers                  whom that reducer sees: input of `judge`
Configure (newer)      enter the epoch: stop pushing, Hello to every member
Start                  push again everything from its minimum on, then go on with new collectives
Result                 must answer the oldest push on that link; store, deliver, acknowledge
Minimum                forget contributions that everybody is done with
Abort, on a live link  fail with that error, and tell the other reducers
Abort, on a Join       busy or draining: dial again for a while; else fail
stream lost            dial again; a member's stream is a reason for a new epoch
Tick                   dial, judge, acknowledge, time out
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from reduction.errors import (
    ClosedError,
    CollectiveTimeout,
    JobBusy,
    OutOfOrder,
    PeerLeft,
    ProtocolError,
    ReducerDraining,
    ReductionError,
    ResourceExhausted,
    StaleInstance,
    from_code,
)
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    Configure,
    Goodbye,
    Hello,
    Join,
    Member,
    Minimum,
    Peers,
    Result,
    Start,
    Welcome,
)

from worker_plugin.core.actions import (
    Action,
    Closed,
    Deliver,
    Fail,
    Log,
    Open,
    PushChunk,
    Release,
    Send,
    Shut,
    Store,
)
from worker_plugin.core.events import Broke, Close, Event, Issued, Lost, Received, Tick
from worker_plugin.core.lane import Lane
from worker_plugin.core.link import Link, Phase
from worker_plugin.core.verdict import GiveUp, Reconfigure, View, judge
from worker_plugin.core.window import Window

#: How long an acknowledgement waits for a push to ride on, in seconds.
ACK_DELAY_S = 0.05
#: How long a Join is repeated when the job's name or rank is still taken by its last life, in seconds.
BUSY_S = 3.0
_INFO, _WARNING = 20, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this rank is, and the settings that the protocol needs; fixed for the communicator's life."""

    job: str
    #: 16 bytes on rank 0, empty on the others, which learn it from the first configuration.
    instance: bytes
    nonce: bytes
    host: str
    rank: int
    world_size: int
    chunk_bytes: int
    credit_bytes: int
    timeout_s: float
    stall_warn_s: float
    join_timeout_s: float
    close_timeout_s: float


class State(enum.Enum):
    """Phase of the communicator."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class Communicator:
    """The rank's whole state. One call per event; actions are to be performed in order."""

    def __init__(self, identity: Identity, addresses: Iterable[str]) -> None:
        self.identity = identity
        self.instance = identity.instance
        self.links = [Link(number, address) for number, address in enumerate(addresses)]
        self.window = Window()
        self.configuration: Configuration | None = None
        self.state = State.OPEN
        self.error: ReductionError | None = None
        self.started_at: float | None = None
        self.broken_since: float | None = None
        self.alone_since: float | None = None
        self.ack_due: float | None = None
        self.close_due: float | None = None
        #: The last collective that a warning was given for.
        self.warned_seq: int | None = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic). Never raises, whatever a peer sent."""
        if self.state in (State.CLOSED, State.FAILED):
            return [Closed()] if isinstance(event, Close) and self.state is State.FAILED else []
        actions: list[Action] = []
        try:
            self._dispatch(event, now, actions)
        except ReductionError as error:
            self._fail(error, actions)
        return actions

    def _dispatch(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case Received(number, frame):
                self._on_frame(self.links[number], frame, now, actions)
            case Issued(collective):
                self._on_issued(collective, now, actions)
            case Lost(number, error):
                self._on_lost(self.links[number], error, now, actions)
            case Broke(error):
                raise error
            case Close():
                self._on_close(now, actions)
            case Tick():
                self._on_tick(now, actions)

    # ---- the user's side ----

    def _on_issued(self, collective: Collective, now: float, actions: list[Action]) -> None:
        for link in self.links:
            if (left := link.has_left()) is not None:
                raise PeerLeft(
                    f"rank {left.rank} ({left.host}) closed, but this rank issued collective {self.window.issued}"
                )
        self.window.issue(collective)
        for link in self.links:
            self._push_on(link, now, actions)

    def _on_close(self, now: float, actions: list[Action]) -> None:
        if self.state is State.CLOSING:
            return
        self.state = State.CLOSING
        if not self.window.is_idle:
            count = self.window.issued - self.window.held
            actions.append(Fail(ClosedError(f"closed with {count} collectives in flight")))
            self._leave(actions)
            return
        self.close_due = now + self.identity.close_timeout_s
        self._acknowledge(actions)
        self._leave_if_done(now, actions)

    def _leave_if_done(self, now: float, actions: list[Action]) -> None:
        """After success: others may need our contributions until everybody holds everything."""
        if self.state is not State.CLOSING:
            return
        everybody_done = self.window.minimum >= self.window.issued
        peer_left = any(link.has_left() is not None for link in self.links)
        late = self.close_due is not None and now >= self.close_due
        if everybody_done or peer_left or late:
            self._leave(actions)

    def _leave(self, actions: list[Action]) -> None:
        self.state = State.CLOSED
        goodbye = Goodbye(self.window.held, min(self.window.minimum, self.window.issued))
        actions += [Send(link.id, goodbye) for link in self.links if link.is_up]
        actions.append(Closed())

    # ---- frames ----

    def _on_frame(self, link: Link, frame: object, now: float, actions: list[Action]) -> None:
        if isinstance(frame, Abort):
            self._on_abort(link, frame, now, actions)
            return
        if (link.phase is Phase.OPENING) != isinstance(frame, Welcome):
            raise OutOfOrder(
                f"{link.address} sent {type(frame).__name__} while the link is {link.phase.value}"
            )
        match frame:
            case Result():
                self._on_result(link, frame, now, actions)
            case Minimum(minimum):
                self._on_minimum(minimum, now, actions)
            case Peers():
                lost = link.see(frame, now)
                if lost and self._is_member(link):
                    self._broken(now)
                self._judge(now, actions)
                self._leave_if_done(now, actions)
            case Configure(configuration):
                if configuration.epoch > (self.configuration.epoch if self.configuration else 0):
                    self._enter(configuration, actions)
            case Start(epoch, minimum):
                self._on_start(link, epoch, minimum, now, actions)
            case Welcome(incarnation, credit_bytes):
                self._on_welcome(link, incarnation, credit_bytes, now, actions)

    def _on_welcome(
        self, link: Link, incarnation: bytes, credit_bytes: int, now: float, actions: list[Action]
    ) -> None:
        twin = next((other for other in self.links if other.is_up and other.incarnation == incarnation), None)
        if twin is not None:
            link.phase = Phase.RETIRED
            text = f"{link.address} and {twin.address} are the same reducer; using {twin.address}"
            actions += [Shut(link.id), Log(_WARNING, text)]
            return
        link.welcome(incarnation, credit_bytes, now)
        self.alone_since = None
        if self.configuration is not None:
            self._greet(link, actions)

    def _on_start(self, link: Link, epoch: int, minimum: int, now: float, actions: list[Action]) -> None:
        configuration = self.configuration
        if configuration is None or epoch != configuration.epoch:
            return  # of an epoch that this rank has left
        index = configuration.index_of(link.incarnation)
        if index is None or link.hello_epoch != epoch or link.lane is not None:
            raise OutOfOrder(f"{link.address} started epoch {epoch} without this rank's Hello, or twice")
        if not self.window.released <= minimum <= self.window.held:
            raise OutOfOrder(
                f"{link.address} asks for collectives from {minimum} on; this rank has "
                f"{self.window.released} to {self.window.held}"
            )
        link.lane = Lane(configuration, index, link.credit_bytes, minimum)
        self._push_on(link, now, actions)
        self._on_minimum(minimum, now, actions)

    def _on_result(self, link: Link, result: Result, now: float, actions: list[Action]) -> None:
        if self.configuration is None or result.epoch != self.configuration.epoch:
            return  # of an epoch that this rank has left: the new one brings it again
        if link.lane is None or not link.lane.on_result(result.seq, result.chunk):
            raise OutOfOrder(
                f"{link.address} sent chunk {result.chunk} of collective {result.seq}, "
                f"which is not this rank's oldest push there"
            )
        if self.window.needs(result.seq, result.chunk):
            start, stop = self.window.span(result.seq, result.chunk)
            if result.payload.nbytes != stop - start:
                raise OutOfOrder(
                    f"{link.address} sent {result.payload.nbytes} bytes for chunk {result.chunk} of collective "
                    f"{result.seq}, which has {stop - start}"
                )
            actions.append(Store(result.seq, start, result.payload))
            if self.window.take(result.seq, result.chunk):
                actions.append(Deliver(result.seq))
                if self.ack_due is None:
                    self.ack_due = now + ACK_DELAY_S
        self._push_on(link, now, actions)
        self._on_minimum(result.minimum, now, actions)

    def _on_minimum(self, minimum: int, now: float, actions: list[Action]) -> None:
        self.window.minimum = max(self.window.minimum, min(minimum, self.window.held))
        self._release(actions)
        self._leave_if_done(now, actions)

    def _on_abort(self, link: Link, abort: Abort, now: float, actions: list[Action]) -> None:
        error = from_code(abort.code, abort.message)
        if link.phase is not Phase.OPENING:
            raise error
        # A refused Join. What may pass is tried again; its stream is about to end.
        link.error = error
        running = self.configuration is not None
        match error:
            case ReducerDraining():
                return
            case JobBusy() | StaleInstance() if not running:
                # The last life of this job may be ending at this very moment.
                link.busy_since = now if link.busy_since is None else link.busy_since
                if now < link.busy_since + BUSY_S:
                    return
            case ResourceExhausted() | JobBusy() if running:
                return
        raise error

    def _on_lost(self, link: Link, error: ReductionError | None, now: float, actions: list[Action]) -> None:
        if link.phase is Phase.RETIRED:
            return
        if isinstance(error, ProtocolError):
            raise error  # dialling again would bring the same bytes
        if link.is_up and self._is_member(link):
            self._broken(now)
            actions.append(Log(_WARNING, f"lost the stream to {link.address}: {error or 'it ended'}"))
        link.down(error, now)
        if self.alone_since is None and not any(other.is_up for other in self.links):
            self.alone_since = now
        self._judge(now, actions)

    # ---- time ----

    def _on_tick(self, now: float, actions: list[Action]) -> None:
        if self.started_at is None:
            self.started_at = self.alone_since = now
        for link in self.links:
            if link.phase is Phase.DOWN and now >= link.dial_at:
                link.open()
                actions.append(Open(link.id, link.address, self._join()))
        if self.ack_due is not None and now >= self.ack_due:
            self._acknowledge(actions)
        self._check_progress(now, actions)
        self._judge(now, actions)
        self._leave_if_done(now, actions)

    def _check_progress(self, now: float, actions: list[Action]) -> None:
        """Warn once about the oldest collective that is not done, and give it up in the end."""
        seq = self.window.held
        oldest = self.window.issues.get(seq)
        if oldest is None or oldest.pushed_at is None:
            return
        waited = now - oldest.pushed_at
        where = ", ".join(link.address for link in self.links if link.lane is not None and link.lane.pending)
        text = (
            f"collective {seq} ({oldest.collective}) is not done {waited:.0f} s after its first push: "
            f"{oldest.missing} of {len(oldest.here)} chunks are missing, from {where or 'no reducer'}"
        )
        if waited >= self.identity.timeout_s:
            raise CollectiveTimeout(text)
        if waited >= self.identity.stall_warn_s and self.warned_seq != seq:
            self.warned_seq = seq
            actions.append(Log(_WARNING, text))

    def _join(self) -> Join:
        who = self.identity
        return Join(
            job=who.job,
            instance=self.instance,
            rank=who.rank,
            world_size=who.world_size,
            nonce=who.nonce,
            host=who.host,
            minimum=self.window.minimum,
            credit_bytes=who.credit_bytes,
        )

    # ---- epochs ----

    def _judge(self, now: float, actions: list[Action]) -> None:
        view = View(
            now=now,
            rank=self.identity.rank,
            world_size=self.identity.world_size,
            links=self.links,
            configuration=self.configuration,
            broken_since=self.broken_since,
            alone_since=self.alone_since,
            started_at=self.started_at if self.started_at is not None else now,
            is_idle=self.window.is_idle,
            join_timeout_s=self.identity.join_timeout_s,
        )
        match judge(view):
            case Reconfigure(links, reason):
                epoch = 1 if self.configuration is None else self.configuration.epoch + 1
                members = tuple(Member(link.address, link.incarnation) for link in links)
                where = ", ".join(link.address for link in links)
                level = _INFO if self.broken_since is None else _WARNING
                actions.append(Log(level, f"epoch {epoch} with {len(links)} reducers ({where}): {reason}"))
                chunk_bytes = self.identity.chunk_bytes
                self._enter(Configuration(self.instance, epoch, chunk_bytes, members), actions)
            case GiveUp(error) if self.state is not State.CLOSING:
                raise error

    def _enter(self, configuration: Configuration, actions: list[Action]) -> None:
        """Stop pushing, take the configuration, say Hello to all its members."""
        if self.instance and configuration.instance != self.instance:
            raise StaleInstance(f"a configuration of another life of job {self.identity.job!r} arrived")
        self.instance = configuration.instance
        self.configuration = configuration
        self.broken_since = None
        self.window.regrid(configuration.chunk_bytes)
        for link in self.links:
            link.lane = None
        known = {link.incarnation for link in self.links if link.is_up} | {
            link.address for link in self.links
        }
        for member in configuration.members:
            # Rank 0's list is the one that counts. By address only: a name that leads to a reducer which
            # is known under another one turns out to be its twin at Welcome.
            if member.incarnation not in known and member.address not in known:
                self.links.append(Link(len(self.links), member.address))
        for link in self.links:
            if link.is_up:
                self._greet(link, actions)

    def _greet(self, link: Link, actions: list[Action]) -> None:
        """Say Hello if the link is a member that has not heard it in this epoch.

        Not a second time on a new stream: what went over the old one may be lost, and rank 0, which sees the
        loss too, makes a new epoch.
        """
        assert self.configuration is not None
        if self._is_member(link) and link.hello_epoch < self.configuration.epoch:
            link.hello_epoch = self.configuration.epoch
            link.acked = self.window.held
            actions.append(Send(link.id, Hello(self.configuration, self.window.held)))

    def _is_member(self, link: Link) -> bool:
        return self.configuration is not None and self.configuration.index_of(link.incarnation) is not None

    def _broken(self, now: float) -> None:
        if self.broken_since is None:
            self.broken_since = now

    # ---- pushes and acknowledgements ----

    def _push_on(self, link: Link, now: float, actions: list[Action]) -> None:
        lane, configuration = link.lane, self.configuration
        if lane is None or configuration is None:
            return
        while (push := lane.next_push(self.window)) is not None:
            seq, chunk, start, stop = push
            issue = self.window.issues[seq]
            issue.pushed_at = now if issue.pushed_at is None else issue.pushed_at
            link.acked = self.window.held
            actions.append(
                PushChunk(
                    link=link.id,
                    epoch=configuration.epoch,
                    seq=seq,
                    chunk=chunk,
                    collective=issue.collective,
                    held=self.window.held,
                    start=start,
                    stop=stop,
                )
            )

    def _acknowledge(self, actions: list[Action]) -> None:
        """Tell every member that no push has told yet."""
        self.ack_due = None
        for link in self.links:
            if link.lane is not None and link.acked < self.window.held:
                link.acked = self.window.held
                actions.append(Send(link.id, Ack(self.window.held)))

    def _release(self, actions: list[Action]) -> None:
        """Forget contributions, but only while every member has started and got ours."""
        if self.configuration is None:
            return
        lanes = [link.lane for link in self.links if link.lane is not None]
        if len(lanes) == len(self.configuration.members):
            bound = min(lane.seq for lane in lanes)
            actions += [Release(seq) for seq in self.window.release(bound)]

    def _fail(self, error: ReductionError, actions: list[Action]) -> None:
        """End with an error here, and through the reducers everywhere."""
        closing = self.state is State.CLOSING
        self.state = State.FAILED
        if closing:  # all results are here: the others' trouble is not ours
            self.state = State.CLOSED
            actions.append(Closed())
            return
        self.error = error
        abort = Abort(error.code, f"rank {self.identity.rank} ({self.identity.host}): {error}")
        actions += [Send(link.id, abort) for link in self.links if link.is_up]
        actions.append(Fail(error))
