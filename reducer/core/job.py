"""One job as a reducer sees it: its ranks, its epoch, its slots. Nothing else changes them.

This module is a state machine, which is why it is long. The tables below give the effect of each event
in each phase, and the methods of `Job` implement them.

    phase        meaning                                          left by
    forming      no configuration yet (epoch 0)                   the first Hello
    configured   an epoch is known, Hellos are missing            the last Hello: Start to all
    running      all ranks have sent Hello: pushes count          a newer epoch: back to configured
    failed       Abort was sent to all ranks, memory is free      `Jobs` drops it immediately

    event                    forming           configured           running
    Hello, older epoch       -                 ignore               ignore
    Hello, same epoch        -                 count                ignore (the rank was lost)
    a second Hello           -                 OutOfOrder           OutOfOrder
    Hello, newer epoch       adopt the configuration, relay it to the other ranks, count
    Push of an older epoch   ignore            ignore               ignore
    Push of this epoch       OutOfOrder        OutOfOrder           fold, publish when complete
    Ack                      raise `held`, and with it the minimum that every rank holds
    Goodbye                  the rank has left: tell the others; a slot that needs it fails the job
    Abort                    fail the job with the rank's own error
    stream lost              the rank is lost until it dials again; rank 0 is notified, and decides

Only rank 0 creates epochs, and a reducer never does, so an epoch has one meaning everywhere
(proto/README.md, "Membership"). Adopting an epoch drops every slot, so nothing is ever summed
across epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reduction import layout
from reduction.errors import (
    CollectiveMismatch,
    OutOfOrder,
    PeerLeft,
    ReductionError,
    from_code,
)
from reduction.limits import ACK_DELAY_S, WAITING_RANKS_MAX
from reduction.model import (
    NOWHERE,
    Abort,
    Ack,
    Configuration,
    Configure,
    Goodbye,
    Hello,
    Join,
    LinkRate,
    Minimum,
    Moved,
    NamedReducers,
    Outcome,
    Peer,
    Peers,
    Place,
    Presence,
    Push,
    Start,
    Waiting,
    Welcome,
    WorkerFrame,
    job_title,
)
from reduction.pacing import UNPACED, Pacing, Sent

from reducer.core.actions import Action, Close, Discard, Fold, Publish, Send, SlotKey, Throttle, Warn
from reducer.core.fair_shares import NOBODY, Account
from reducer.core.slot import Slot, check_chunk
from reducer.core.totals import JobLabel, JobTotals, job_label
from reducer.core.waits import NEWS_S, Waits


class JobFailed(Exception):
    """Raised inside a job's handlers when the error concerns all ranks and not just one stream."""

    def __init__(self, error: ReductionError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class RankView:
    """A rank as the reducer sees it."""

    nonce: bytes
    host: str
    #: The instance in the rank's Join. Empty if the rank knew none.
    instance: bytes
    #: The rank's stream. None while the rank is lost or has left.
    stream: int | None
    presence: Presence = Presence.PRESENT
    #: Whether its process has ended.
    has_ended: bool = False
    place: Place = NOWHERE
    #: Number of streams that the rank has had.
    streams: int = 1
    #: The rank holds the results of all collectives below this number.
    held: int = 0
    #: The rate that the rank has reported; infinite if no limit is known.
    rate: float = math.inf
    #: The rate that the rank was last sent on its current stream.
    told_rate: float = math.inf
    #: Whether the current stream is paced.
    is_paced: bool = False
    #: Bytes of credit that the rank's pushes of this epoch take until their results are published.
    outstanding: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """All state of one job on one reducer."""

    id: int
    name: str
    world_size: int
    credit_bytes: int
    reserved_bytes: int
    incarnation: bytes
    #: Name of the process group, because one job may have several. "" stands for the whole job.
    group: str = ""
    #: Each contribution is the sum over this many processes of a node.
    local_size: int = 1
    #: The run of all ranks of the job. Ranks of another run are never admitted.
    run: str = ""
    #: Account that is charged for the job.
    account: Account = NOBODY
    #: The place of this reducer.
    place: Place = NOWHERE
    instance: bytes = b""
    epoch: int = 0
    #: When the first Hello of this epoch arrived.
    adopted_at: float = 0.0
    configuration: Configuration | None = None
    #: Position of this reducer in the configuration.
    index: int = 0
    #: Whether pushes and results have checksums. The engine reads it for every push.
    has_checksums: bool = False
    is_started: bool = False
    minimum: int = 0
    #: How the job ended, once it has.
    outcome: Outcome = Outcome.LOST
    ranks: dict[int, RankView] = field(default_factory=dict)
    #: The `held` of each rank's Hello in this epoch.
    hellos: dict[int, int] = field(default_factory=dict)
    slots: dict[tuple[int, int], Slot] = field(default_factory=dict)
    #: When to send the minimum in its own frame. None when every rank has received it.
    minimum_due: float | None = None
    is_draining: bool = False
    #: Ranks that sent Goodbye.
    left: list[int] = field(default_factory=list)
    #: The first rank that reported its reducers, its host, and those reducers.
    told: tuple[int, str, NamedReducers] | None = None
    #: Payload bytes of all pushes that counted.
    received_bytes: int = 0
    #: Payload bytes of all results.
    sent_bytes: int = 0
    #: Value of `sent_bytes` when the connections were last examined.
    looked_at_bytes: int = 0
    #: The counters of all jobs of this name.
    totals: JobTotals = field(default_factory=JobTotals)
    waits: Waits = field(init=False)
    #: Rate at which results are sent.
    pacing: Pacing = field(default_factory=Pacing)

    def __post_init__(self) -> None:
        self.waits = Waits(self.totals)

    @property
    def title(self) -> str:
        """The name of the job in messages."""
        return job_title(self.name, self.group)

    @property
    def label(self) -> JobLabel:
        """The label of the job's counters."""
        return job_label(self.name, self.group)

    # ---- streams come and go ----

    def was_told_otherwise(self, join: Join) -> ReductionError | None:
        """Return an error if this rank was configured with other reducers than a present rank.

        They would wait for each other forever at different reducers. Once an epoch has begun, all ranks have
        met.
        """
        if join.named is None or self.told is None or self.epoch:
            return None
        rank, host, named = self.told
        # An absent rank may belong to an earlier instance of the job.
        if not self.is_present(rank) or named.agrees_with(join.named):
            return None
        return CollectiveMismatch(
            f"rank {join.rank} ({join.host}) was given the reducers {join.named.text}, but rank {rank} ({host}) "
            f"{named.text}: give all ranks of job {self.title!r} the same reducers, and add ?count=K to a DNS name "
            f"that gains addresses"
        )

    def on_join(self, stream: int, join: Join) -> list[Action]:
        """Attach a stream. `Jobs` has decided that this process may be this rank."""
        actions: list[Action] = []
        if join.named is not None and (self.told is None or not self.is_present(self.told[0])):
            self.told = join.rank, join.host, join.named
        view = self.ranks.get(join.rank)
        if view is not None and view.nonce == join.nonce:
            if view.stream is not None:  # the rank noticed the broken stream before this reducer
                actions.append(Close(view.stream, None))
                self.hellos.pop(join.rank, None)
            view.stream = stream
            view.presence = Presence.PRESENT
            view.has_ended = False
            view.rate = view.told_rate = math.inf
            view.is_paced = False
            # The count shows rank 0 that the previous stream was lost, perhaps with pushes on it.
            view.streams += 1
        else:
            self.ranks[join.rank] = RankView(join.nonce, join.host, join.instance, stream, place=join.place)
        if join.rank == 0:  # only rank 0 knows which instance of the job this is
            self.instance = self.instance or join.instance
        self.minimum = max(self.minimum, join.minimum)
        actions.append(Send(stream, Welcome(self.incarnation, self.credit_bytes, place=self.place)))
        actions.append(Send(stream, Peers(self._concerning(join.rank), self.is_draining)))
        actions += self._tell_of(join.rank)
        if join.rank and self.configuration is not None:
            actions.append(Send(stream, Configure(self.configuration)))
        return actions

    def on_lost(self, rank: int) -> list[Action]:
        """Record that a rank's stream broke without Goodbye."""
        view = self.ranks[rank]
        view.stream = None
        view.presence = Presence.LOST
        # Its pushes may be lost, so the rank counts again only in the next epoch that rank 0 creates.
        self.hellos.pop(rank, None)
        return self._tell_of(rank)

    def on_ended(self, rank: int, nonce: bytes) -> list[Action]:
        """Record that the process of a rank whose stream broke has ended."""
        view = self.ranks.get(rank)
        if view is None or view.nonce != nonce or view.presence is not Presence.LOST:
            return []
        view.has_ended = True
        return self._tell_of(rank)

    # ---- frames ----

    def on_frame(self, rank: int, frame: WorkerFrame, now: float) -> list[Action]:
        """Handle a frame from a present rank.

        Raises:
            ReductionError: the rank is at fault, and its stream must end with this error.
            JobFailed: the error concerns every rank.
        """
        match frame:
            case Push():
                return self._on_push(rank, frame, now)
            case Ack(held):
                self._on_held(rank, held, now)
                return []
            case LinkRate():
                self.ranks[rank].rate = frame.rate
                return []
            case Hello():
                return self._on_hello(rank, frame, now)
            case Goodbye():
                return self._on_goodbye(rank, frame, now)
            case Abort(code, message):
                raise JobFailed(from_code(code, message))
            case Join() | Moved():
                raise OutOfOrder(f"rank {rank} sent a second {type(frame).__name__} on one stream")

    def _on_hello(self, rank: int, hello: Hello, now: float) -> list[Action]:
        if hello.configuration.epoch < self.epoch:
            return []
        index = hello.configuration.index_of(self.incarnation)
        if index is None:
            raise OutOfOrder(
                f"rank {rank} sent Hello to a reducer outside epoch {hello.configuration.epoch}'s configuration"
            )
        actions: list[Action] = []
        if hello.configuration.epoch > self.epoch:
            actions += self._adopt(rank, hello.configuration, index)
            self.adopted_at = now
        elif hello.configuration != self.configuration:
            raise OutOfOrder(f"rank {rank} has a different configuration of epoch {self.epoch}")
        if rank in self.hellos:
            raise OutOfOrder(f"rank {rank} sent Hello again in epoch {self.epoch}")
        if self.is_started:
            # The rank was lost, perhaps with pushes of this epoch, so rank 0 creates another epoch.
            return actions
        view = self.ranks[rank]
        self.hellos[rank] = hello.held
        if hello.held > view.held:
            view.held = hello.held
            self._raise_minimum()
        if len(self.hellos) == self.world_size:
            self.is_started = True
            start = Start(self.epoch, min(self.hellos.values()))
            actions += [Send(stream, start) for stream in self.streams()]
        return actions

    def _adopt(self, rank: int, configuration: Configuration, index: int) -> list[Action]:
        if self.instance and configuration.instance != self.instance:
            raise OutOfOrder(f"rank {rank} sent a configuration of another instance of job {self.title!r}")
        if configuration.chunk_bytes > self.credit_bytes:
            raise OutOfOrder(
                f"rank {rank} sent a configuration with chunks of {configuration.chunk_bytes} bytes, but the job "
                f"joined with a credit of {self.credit_bytes}: set the same chunk_bytes and credit_bytes on all ranks"
            )
        self.instance = configuration.instance
        self.configuration = configuration
        self.index = index
        self.has_checksums = configuration.checksums
        self.epoch = configuration.epoch
        self.totals.epochs += 1
        self.is_started = False
        self.hellos.clear()
        for view in self.ranks.values():
            view.outstanding = 0
        actions: list[Action] = self.discard_slots()
        relay = Configure(configuration)
        for other, view in self.ranks.items():
            if other not in (0, rank) and view.stream is not None:
                actions.append(Send(view.stream, relay))
        return actions

    def _on_push(self, rank: int, push: Push, now: float) -> list[Action]:
        if push.epoch < self.epoch:
            return []  # sent before the rank knew of this epoch, so it will push again
        view = self.ranks[rank]
        slot = self._slot_for(rank, push, now)
        try:
            payloads = slot.on_push(rank, push.collective, push.payload)
        except CollectiveMismatch as error:
            first = slot.first_rank
            who = f"rank {rank} ({view.host}), rank {first} ({self.ranks[first].host})"
            raise JobFailed(CollectiveMismatch(f"collective {push.seq}: {error}: {who}")) from None
        self._check_left(push.seq, slot)
        view.outstanding += layout.charge(slot.layout_bytes)
        self.received_bytes += push.payload.nbytes
        self._on_held(rank, push.held, now)
        actions: list[Action] = []
        key = SlotKey(self.id, push.seq, push.chunk)
        if payloads:
            actions.append(Fold(key, push.collective, payloads, slot.layout_bytes))
        missing = slot.missing
        if missing == 1:
            self.waits.wait_for(slot.folded, now)
        elif not missing:
            actions.append(self._complete(key, slot, rank, now))
        return actions

    def _slot_for(self, rank: int, push: Push, now: float) -> Slot:
        """Return the slot of a push, a new one if it is the chunk's first.

        Raises:
            OutOfOrder: the rank may not push now, or not as much.
            ReductionError: the push does not fit the layout; see `check_chunk`.
        """
        if push.epoch > self.epoch or not self.is_started or rank not in self.hellos:
            raise OutOfOrder(
                f"rank {rank} pushed in epoch {push.epoch}, but this reducer is in epoch {self.epoch}, "
                f"{'started' if self.is_started else 'not started'}"
            )
        slot = self.slots.get((push.seq, push.chunk))
        nbytes = push.payload.nbytes
        if slot is None or not slot.expects(push.collective, nbytes):
            assert self.configuration is not None  # `is_started` implies it
            layout_bytes = check_chunk(rank, push, self.configuration, self.index)
        else:
            layout_bytes = slot.layout_bytes
        outstanding, cost = self.ranks[rank].outstanding, layout.charge(layout_bytes)
        if outstanding and outstanding + cost > self.credit_bytes:
            raise OutOfOrder(
                f"rank {rank} pushed {outstanding + cost} bytes ahead of the results, "
                f"but its credit is {self.credit_bytes}"
            )
        if slot is None:
            is_late = bool(self.slots) and (push.seq, push.chunk) < next(reversed(self.slots))
            slot = self.slots[push.seq, push.chunk] = Slot(
                push.collective, layout_bytes, nbytes, rank, self.world_size, now
            )
            if is_late:  # some rank has skipped it, which `_check_order` will find
                self.slots = dict(sorted(self.slots.items()))
        return slot

    def _complete(self, key: SlotKey, slot: Slot, last: int, now: float) -> Publish:
        """Close a slot that rank `last` has completed, and return the action that publishes its sum."""
        self._check_order(key.seq, key.chunk)
        del self.slots[key.seq, key.chunk]
        self.waits.note(last, now - slot.opened_at, now)
        cost = layout.charge(slot.layout_bytes)
        for view in self.ranks.values():
            view.outstanding -= cost
        self.minimum_due = None
        return Publish(
            key,
            slot.collective,
            self.world_size * self.local_size,
            self.epoch,
            self.minimum,
            self._audience(),
            self.has_checksums,
            last,
            slot.opened_at,
        )

    def _audience(self) -> tuple[int, ...]:
        """Return the streams to which a result is sent. Each reducer starts with another rank.

        If all k reducers answered rank 0 first, its link would receive the data of k links at the same
        time and drop most of it.
        """
        # A rank that returned on a new stream expects no results before the next epoch.
        present = [
            view.stream for r, view in self.ranks.items() if r in self.hellos and view.stream is not None
        ]
        first = self.index % len(present) if present else 0
        return (*present[first:], *present[:first])

    def _on_held(self, rank: int, held: int, now: float) -> None:
        view = self.ranks[rank]
        if held > view.held:
            view.held = held
            if self._raise_minimum() and self.minimum_due is None:
                self.minimum_due = now + ACK_DELAY_S

    def _on_goodbye(self, rank: int, goodbye: Goodbye, now: float) -> list[Action]:
        view = self.ranks[rank]
        self.minimum = max(self.minimum, goodbye.minimum)
        self._on_held(rank, goodbye.held, now)
        if rank not in self.left:  # a rank may rejoin and leave again
            self.left.append(rank)
        for (seq, _), slot in self.slots.items():
            self._check_left(seq, slot)
        assert view.stream is not None  # the frame has just arrived on it
        close = Close(view.stream, None)
        view.stream = None
        view.presence = Presence.LEFT
        return [close, *self._tell_of(rank)]

    # ---- time ----

    def on_tick(self, sent: Mapping[int, Sent], now: float) -> list[Action]:
        """Send the minimum if no Result has carried it, and report the ranks that others wait for."""
        actions: list[Action] = []
        self.waits.settle(now)
        oldest = next((slot.collective for slot in self.slots.values()), None)
        waiting = self.waiting(now) if self.waits.may_tell(now) else None
        news, text = self.waits.news(waiting, oldest, now)
        if news is not None:
            actions += [Send(stream, news) for stream in self.streams()]
        if text:
            actions.append(Warn(f"job={self.title} {text}"))
        if self.minimum_due is not None and now >= self.minimum_due:
            self.minimum_due = None
            actions += [Send(stream, Minimum(self.minimum)) for stream in self.streams()]
        return actions + self._pace(sent, now)

    def _pace(self, sent: Mapping[int, Sent], now: float) -> list[Action]:
        """Pace results to the rate of the job's links, and send the lowest rate to all ranks."""
        if self.configuration is None:
            return []
        weights, own_host = self.configuration.weights, self.place.host
        share = weights[self.index] / sum(weights)
        views = {view.stream: view for view in self.ranks.values() if view.stream is not None}
        remote = [stream for stream, view in views.items() if view.place.host != own_host or not own_host]
        self.pacing.hear([view.rate for view in views.values()])
        # Ticks report the streams of all sending jobs, and this job may send nothing.
        if known := {stream: sent[stream] for stream in remote if stream in sent}:
            self.pacing.look(known, share * len(known), now)
        rate = self.pacing.rate
        actions: list[Action] = []
        for stream, view in views.items():
            if view.told_rate != rate:
                view.told_rate = rate
                actions.append(Send(stream, LinkRate.of(rate)))
        is_paced = not math.isinf(rate)
        for stream in remote:
            if is_paced or views[stream].is_paced:
                actions.append(Throttle(stream, int(share * min(rate, UNPACED))))
            views[stream].is_paced = is_paced
        return actions

    def waiting(self, now: float) -> Waiting | None:
        """Return the ranks that others wait for, or None if nothing has waited for NEWS_S, as is usual."""
        if self.epoch and not self.is_started:
            since, seq, chunk, epoch = self.adopted_at, 0, 0, self.epoch
            has: Callable[[int], bool] = self.hellos.__contains__
        elif self.slots:
            # Slots complete in the order in which they were opened.
            (seq, chunk), slot = next(iter(self.slots.items()))
            since, epoch, has = slot.opened_at, 0, slot.has
        else:
            return None
        if now < since + NEWS_S:
            return None
        missing = [peer for peer in self.peers() if not has(peer.rank)]
        return Waiting(seq, chunk, now - since, len(missing), tuple(missing[:WAITING_RANKS_MAX]), epoch)

    # ---- called by `Jobs` ----

    def drain(self) -> list[Action]:
        """Tell all ranks that this reducer wants to leave."""
        self.is_draining = True
        return [Send(stream, Peers((), self.is_draining)) for stream in self.streams()]

    def fail(self, error: ReductionError) -> list[Action]:
        """Send every present rank the reason why the job is over, and free its memory."""
        abort = Abort(error.code, str(error))
        actions: list[Action] = self.discard_slots()
        for view in self.ranks.values():
            if view.stream is not None:
                actions += [Send(view.stream, abort), Close(view.stream, error)]
                view.stream = None
        return actions

    def discard_slots(self) -> list[Action]:
        """Free all accumulators."""
        discards: list[Action] = [Discard(SlotKey(self.id, seq, chunk)) for seq, chunk in self.slots]
        self.slots.clear()
        self.waits.forget()
        return discards

    def blame(self, rank: int, text: str) -> str:
        """Return an error's text for all ranks, beginning with the rank at fault and its host."""
        who = f"rank {rank} ({self.ranks[rank].host})"
        own = f"rank {rank} "
        return f"{who} {text.removeprefix(own)}" if text.startswith(own) else f"{who}: {text}"

    def stream_of(self, rank: int) -> int | None:
        """Return the rank's stream to this reducer, or None."""
        view = self.ranks.get(rank)
        return None if view is None else view.stream

    def is_present(self, rank: int) -> bool:
        """Return whether the rank has a stream to this reducer."""
        return self.stream_of(rank) is not None

    @property
    def present_ranks(self) -> int:
        """Number of ranks with a stream to this reducer."""
        return sum(view.stream is not None for view in self.ranks.values())

    @property
    def is_deserted(self) -> bool:
        """Whether no rank has a stream to this reducer."""
        return not self.present_ranks

    @property
    def has_ended(self) -> bool:
        """Whether every rank has left with a Goodbye."""
        presences = [view.presence for view in self.ranks.values()]
        return len(presences) == self.world_size and all(presence is Presence.LEFT for presence in presences)

    @property
    def needs_this_reducer(self) -> bool:
        """Whether this reducer is a member of the job's current configuration."""
        return self.configuration is not None and self.configuration.index_of(self.incarnation) is not None

    def peers(self) -> tuple[Peer, ...]:
        """Return all ranks that ever joined, in ascending order."""
        return tuple(map(self._peer, sorted(self.ranks)))

    # ---- helpers ----

    def streams(self) -> list[int]:
        """Return the streams of all present ranks, in rank order."""
        return [view.stream for _, view in sorted(self.ranks.items()) if view.stream is not None]

    def _raise_minimum(self) -> bool:
        """Recompute the minimum, and return whether it rose. Ranks that never joined hold nothing."""
        if len(self.ranks) < self.world_size:
            return False
        least = min(view.held for view in self.ranks.values())
        if least <= self.minimum:
            return False
        self.totals.collectives += least - self.minimum
        self.minimum = least
        return True

    def _peer(self, rank: int) -> Peer:
        view = self.ranks[rank]
        return Peer(rank, view.nonce, view.host, view.presence, view.streams, view.place, view.has_ended)

    def _concerning(self, rank: int) -> tuple[Peer, ...]:
        """Return the peers that a rank must know of.

        Rank 0 decides about all ranks. The others wait for rank 0, and must know which ranks have left.
        """
        if rank == 0:
            return self.peers()
        return tuple(self._peer(other) for other in sorted({0, *self.left}) if other in self.ranks)

    def _tell_of(self, rank: int) -> list[Action]:
        """Report a change of one rank to the ranks that must know of it."""
        news = Peers((self._peer(rank),), self.is_draining)
        to_all = rank == 0 or self.ranks[rank].presence is Presence.LEFT
        return [
            Send(view.stream, news)
            for other, view in (sorted(self.ranks.items()) if to_all else [(0, self.ranks.get(0))])
            if view is not None and view.stream is not None and other != rank
        ]

    def _check_order(self, seq: int, chunk: int) -> None:
        """Fail the job if a chunk is complete before an older one, since a rank must have skipped the older one.

        Each rank pushes in order, and the result would reach the other ranks before they expect it.
        """
        (old_seq, old_chunk), slot = next(iter(self.slots.items()))
        if (old_seq, old_chunk) != (seq, chunk):
            skipped = next(peer for peer in self.peers() if not slot.has(peer.rank))
            raise JobFailed(
                CollectiveMismatch(
                    f"rank {skipped.rank} ({skipped.host}) has no chunk {old_chunk} of collective {old_seq}, which is "
                    f"{slot.collective} at rank {slot.first_rank} ({self.ranks[slot.first_rank].host})"
                )
            )

    def _check_left(self, seq: int, slot: Slot) -> None:
        """Fail the job if a slot waits for a rank that has left.

        Collectives below the minimum are exempt, because every rank holds their results and they are only
        pushed again for a new epoch.
        """
        for rank in self.left:
            if seq >= self.minimum and not slot.has(rank):
                raise JobFailed(
                    PeerLeft(
                        f"rank {rank} ({self.ranks[rank].host}) closed, but rank {slot.first_rank} "
                        f"still issued collective {seq}: see rank {rank}'s log"
                    )
                )
