"""The real cores of n ranks and k reducers, with a network between them that loses, delays and cuts.

A state is a tuple of small numbers: each rank's and reducer's core is frozen, numbered and never changed. A step
copies one core, lets it handle one event, and numbers the result. Since the cores are deterministic,
(core, event) -> (core, actions) is cached, and most steps are a table lookup.

Time: a core sees 0 with every frame. A tick may occur at any moment, early (dials and acknowledgements are due) or
late (the grace period of a lost stream is over too). Timestamps in a core are reset to 0 after every step, so "since"
and "due" remain facts and never become growing numbers.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from model_check.explorer import Violation
from model_check.faults import faults
from model_check.state import Payload, State_, Stream, put
from reduction.errors import ReducerUnavailable, ReductionError, WorkerFailed, WorkerLost
from reduction.model import Collective, DType, Push, ReduceOp, Result

from reducer.core import actions as ra
from reducer.core import events as re
from reducer.core.jobs import Jobs
from reducer.core.totals import JobTotals, Totals
from reducer.core.waits import Waits
from worker_plugin.core import actions as wa
from worker_plugin.core import events as we
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore, State
from worker_plugin.core.waiting.patience import Patience

EARLY, LATE, CLOSE_LATE, JOIN_LATE = 0.06, 2.0, 6.0, 61.0
CHUNK_BYTES = 1024
#: The error with which a rank breaks.
OWN_ERROR = WorkerFailed("an error of its own")
_TIMES = (
    "dial_at",
    "up_since",
    "started_at",
    "broken_since",
    "unstarted_since",
    "alone_since",
    "busy_since",
    "pushed_at",
)


@dataclass
class RankBox:
    """A rank's core and its result memory."""

    core: RankCore
    stored: set[tuple[int, int]]


@dataclass
class ReducerBox:
    """A reducer's core and its accumulators."""

    core: Jobs
    sums: dict[tuple[int, int], tuple[tuple[int, int, int], ...]]


#: Attributes that do not influence a core's decisions.
SKIPPED = frozenset({"_job_count", "id", "dials", "identity", "received_bytes", "sent_bytes"})


def freeze(value: Any) -> Hashable:
    """Return a hashable snapshot of a core."""
    if isinstance(value, dict):
        return tuple(sorted(((freeze(key), freeze(item)) for key, item in value.items()), key=repr))
    if isinstance(value, set):
        return tuple(sorted(map(freeze, value)))
    if isinstance(value, (str, bytes, int, float, bool, type(None), enum.Enum, Payload)):
        return value
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        return tuple(map(freeze, value))
    return tuple(
        [
            freeze(getattr(value, name))
            for name in _attributes(type(value)) or vars(value)
            if name not in SKIPPED
        ]
    )


@functools.cache
def _attributes(kind: type) -> tuple[str, ...]:
    """Return the attribute names that all objects of a type have in common, if it declares them."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(getattr(kind, "__slots__", ()))


class World:
    """The possible steps; see the module's docstring."""

    def __init__(
        self,
        *,
        reducers: int,
        collectives: int,
        ranks: int = 2,
        numel: int = 257,  # int32: a chunk of 1024 bytes and one of 4
        credit_bytes: int = 2 * CHUNK_BYTES,
        is_hasty: bool = True,
        mortal: int | None = None,
        may_lack_reducers: bool = False,
        is_mute: bool = False,
        fragile: int | None = None,
        dropped: tuple[int, ...] = (),
        named: int | None = None,
    ) -> None:
        self.n, self.k = ranks, reducers
        #: Number of reducers that the ranks know at the start.
        self.named = reducers if named is None else named
        self.collectives = collectives
        self.credit_bytes = credit_bytes
        #: Whether the grace period may expire while a redial is still possible. With one reducer that would be the loss
        #: of a worker, which is an error and not checked here.
        self.is_hasty = is_hasty
        #: The rank that may die, if any. After its death all others may fail, but only with an error that names it.
        self.mortal = mortal
        #: The rank that may break, if any. Then all may fail, but only with its error.
        self.fragile = fragile
        #: Whether ranks may give up joining because a reducer has died for good.
        self.may_lack_reducers = may_lack_reducers
        #: Whether a dial to a reducer that has died for good gets no answer. Otherwise it is refused repeatedly, which
        #: multiplies the states.
        self.is_mute = is_mute
        #: Ranks whose states are dropped at any moment, with issued collectives still in flight, instead of being
        #: closed. With a GPU some of them may not even have reached the core.
        self.dropped = dropped
        self.collective = Collective(ReduceOp.SUM, DType.INT32, numel, 7)
        self.chunks = max(1, -(-numel * 4 // CHUNK_BYTES))
        self._boxes: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._memory: dict[tuple[int, Any, float], tuple[int, list[Any]]] = {}
        self._restarted = 0

    # ---- the start ----

    def start(self, **budget: int) -> State_:
        """Return the initial state, before any step."""
        ranks = tuple(self._number(RankBox(self._communicator(rank), set())) for rank in range(self.n))
        reducers = tuple(self.new_reducer(index, 0) for index in range(self.k))
        return State_(ranks, reducers, (), **budget)

    def settled(self, **budget: int) -> State_:
        """Return the state in which all have joined and the first epoch has started."""
        state = self.start(**budget)
        while True:
            joining = (
                step
                for label, step in self.successors(state)
                if not label.endswith(" dropped")
                and "issues" not in label
                and not label.startswith(("cut", "crash", "death", "late", "rank 0 finds"))
            )
            following = next(joining, None)
            if following is None:
                return state
            state = following

    def after(self, state: State_, *labels: str) -> State_:
        """Return the state after these steps, each being the first whose label starts with the given text."""
        for label in labels:
            state = next(after for name, after in self.successors(state) if name.startswith(label))
        return state

    def _communicator(self, rank: int) -> RankCore:
        identity = Identity(
            job="job",
            instance=b"I" * 16 if rank == 0 else b"",
            nonce=bytes([rank]) * 16,
            host=f"host{rank}",
            rank=rank,
            world_size=self.n,
            chunk_bytes=CHUNK_BYTES,
            credit_bytes=self.credit_bytes,
            timeout_s=600,
            stall_warn_s=600,
            join_timeout_s=60,
            close_timeout_s=5,
        )
        return RankCore(identity, [f"reducer{index}" for index in range(self.named)])

    def new_reducer(self, index: int, life: int) -> int:
        incarnation = bytes([index, life]) * 8
        return self._number(ReducerBox(Jobs(incarnation=incarnation, memory_limit_bytes=1 << 40), {}))

    # ---- cores ----

    def _number(self, box: Any) -> int:
        key = (type(box).__name__, freeze(box), freeze(getattr(box.core, "identity", None)))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._boxes)
            self._boxes.append(box)
        return number

    def _handle(self, number: int, event: Any, now: float) -> tuple[int, list[Any]]:
        key = (number, event, now)
        known = self._memory.get(key)
        if known is None:
            box = copy.deepcopy(self._boxes[number])
            actions = box.core.handle(event, now)
            if isinstance(box, RankBox):
                actions = self._perform_on_rank(box, actions)
                _forget_times(box.core)
            else:
                actions = self._perform_on_reducer(box, actions)
                box.core.totals = Totals()  # statistics do not influence decisions
                for job in box.core.by_name.values():
                    job.minimum_due = None if job.minimum_due is None else 0.0
                    job.totals = JobTotals()
                    job.waits = Waits(job.totals)
            known = self._memory[key] = (self._number(box), actions)
        return known

    def _perform_on_rank(self, box: RankBox, actions: list[Any]) -> list[Any]:
        """Perform the actions on the rank's own memory; return those on its streams."""
        rest = []
        for action in actions:
            match action:
                case wa.Store(seq, start, _, payload):
                    chunk = start // CHUNK_BYTES
                    if payload.parts != tuple((number, seq, chunk) for number in self._summed(box.core)):
                        raise Violation(f"wrong sum for collective {seq} chunk {chunk}: {payload.parts}")
                    box.stored.add((seq, chunk))
                case wa.Deliver(seq):
                    if any((seq, chunk) not in box.stored for chunk in range(self.chunks)):
                        raise Violation(f"collective {seq} delivered in part")
                case wa.PushChunk():
                    if action.seq < box.core.window.released:
                        raise Violation(f"needs the released contribution of collective {action.seq}")
                    payload = Payload(
                        ((self._number_of(box.core), action.seq, action.chunk),), action.stop - action.start
                    )
                    push = Push(
                        action.epoch, action.seq, action.chunk, action.collective, action.held, payload
                    )
                    rest.append(wa.Send(action.link, push))
                case wa.Fail(is_over=True) if box.core.window.held == self.collectives:
                    # It has all results, and a rank whose Goodbye was lost looks to it like one that died.
                    rest.append(wa.Closed())
                case wa.Release() | wa.Log():
                    pass
                case _:
                    rest.append(action)
        return rest

    @staticmethod
    def _number_of(core: RankCore) -> int:
        return core.identity.nonce[0]

    def _summed(self, core: RankCore) -> Iterable[int]:
        """Return the numbers of the processes whose contributions a rank's sums must contain, in order."""
        return range(self.n)

    def _perform_on_reducer(self, box: ReducerBox, actions: list[Any]) -> list[Any]:
        rest = []
        for action in actions:
            match action:
                case ra.Fold(slot, _, payloads):
                    parts = tuple(part for payload in payloads for part in payload.parts)
                    box.sums[slot.seq, slot.chunk] = box.sums.get((slot.seq, slot.chunk), ()) + parts
                case ra.Discard(slot):
                    box.sums.pop((slot.seq, slot.chunk), None)
                case ra.Publish():
                    seq, chunk = action.slot.seq, action.slot.chunk
                    nbytes = CHUNK_BYTES if (chunk + 1) * CHUNK_BYTES <= self.collective.numel * 4 else 4
                    payload = Payload(box.sums.pop((seq, chunk)), nbytes)
                    result = Result(action.epoch, seq, chunk, action.minimum, payload)
                    rest += [ra.Send(stream, result) for stream in action.streams]
                case _:
                    rest.append(action)
        return rest

    # ---- steps ----

    def successors(self, state: State_) -> Iterator[tuple[str, State_]]:
        """Yield every possible step in a state.

        A rank that waits in close() gives up only when nothing else can happen, since its limit of five seconds is
        meant to exceed any recovery.
        """
        steps = list(self._steps(state))
        yield from steps
        if not steps:
            for rank in self._alive(state):
                if self._boxes[state.ranks[rank]].core.state is State.CLOSING:
                    yield from self._tick(state, rank, "late in closing", CLOSE_LATE)

    def _steps(self, state: State_) -> Iterator[tuple[str, State_]]:
        yield from self._frame_steps(state)
        for rank in self._alive(state):
            yield from self._rank_steps(state, rank)
        for index, number in enumerate(state.reducers):
            if number >= 0 and any(
                job.minimum_due is not None for job in self._boxes[number].core.by_name.values()
            ):
                yield f"reducer {index} ticks", self._reducer(state, index, re.Tick(), 0.05)
        yield from faults(self, state)

    def _frame_steps(self, state: State_) -> Iterator[tuple[str, State_]]:
        for stream in state.streams:
            name = f"rank {stream.rank} - reducer {stream.reducer}"
            if stream.up and stream.reducer_end:
                frame, rest = stream.up[0], stream._replace(up=stream.up[1:])
                after = self._reducer(
                    put(state, rest), stream.reducer, re.Received(stream.number, frame), 0.0
                )
                yield f"{name}: up {_short(frame)}", after
            elif stream.reducer_end and (stream.is_cut or not stream.rank_end):
                after = put(state, stream._replace(reducer_end=False))
                yield (
                    f"{name}: reducer sees the end",
                    self._reducer(after, stream.reducer, re.Lost(stream.number), 0.0),
                )
            if stream.down and stream.rank_end:
                frame, rest = stream.down[0], stream._replace(down=stream.down[1:])
                after = self._rank(put(state, rest), stream.rank, we.Received(stream.reducer, frame), 0.0)
                yield f"{name}: down {_short(frame)}", after
            elif stream.rank_end and (stream.is_cut or not stream.reducer_end):
                after = put(state, stream._replace(rank_end=False))
                yield (
                    f"{name}: rank sees the end",
                    self._rank(after, stream.rank, we.StreamLost(stream.reducer, None), 0.0),
                )

    def _rank_steps(self, state: State_, rank: int) -> Iterator[tuple[str, State_]]:
        core = self._boxes[state.ranks[rank]].core
        if core.state not in (State.OPEN, State.CLOSING, State.FAILING):
            return
        if core.state is State.OPEN and core.window.issued < self.collectives:
            issued = self._rank(state, rank, we.Issued(self.collective), 0.0)
            yield f"rank {rank} issues {core.window.issued}", issued
        if core.state is State.OPEN:
            if rank in self.dropped and core.last_issued is None:
                yield f"rank {rank} is dropped", self._rank(state, rank, we.Leave(self.collectives), 0.0)
            elif rank not in self.dropped and core.window.held == self.collectives:
                yield f"rank {rank} closes", self._rank(state, rank, we.Close(), 0.0)
        yield from self._tick(state, rank, "early", EARLY)
        if self.is_hasty or (self._is_quiet(state) and not self._may_redial(state)):
            yield from self._tick(state, rank, "late", LATE)
        if self._lacks_reducers(state) and (not core.epochs.number or max(state.reducers) < 0):
            yield from self._tick(state, rank, "late in joining", JOIN_LATE)

    def _tick(self, state: State_, rank: int, name: str, now: float) -> Iterator[tuple[str, State_]]:
        after = self._rank(state, rank, we.Tick(), now)
        if after is not state and after != state:
            yield f"{name}: rank {rank} ticks", after

    def _may_redial(self, state: State_) -> bool:
        """Return whether some rank could still get a stream, or does not know yet that it has lost one."""
        standing = {
            (stream.rank, stream.reducer)
            for stream in state.streams
            if stream.rank_end and stream.reducer_end and not stream.is_cut and not stream.up
        }
        alive = [index for index in range(self.k) if state.reducers[index] >= 0]
        live = [
            rank
            for rank in self._alive(state)
            if self._boxes[state.ranks[rank]].core.state not in (State.CLOSED, State.FAILED)
        ]
        return any((rank, index) not in standing for rank in live for index in alive)

    def _is_quiet(self, state: State_) -> bool:
        """Return whether nothing is in flight; five seconds pass only then."""
        return all(not stream.up and not stream.down for stream in state.streams)

    # ---- performing ----

    def _rank(self, state: State_, rank: int, event: Any, now: float) -> State_:
        number, actions = self._handle(state.ranks[rank], event, now)
        if number == state.ranks[rank] and not actions:
            return state
        ranks = list(state.ranks)
        ranks[rank] = number
        state = State_(tuple(ranks), *state[1:])
        for action in actions:
            match action:
                case wa.Open(link) if self.is_mute and state.reducers[link] < 0 and not state.restarts:
                    pass
                case wa.Open(link, _, join):
                    free = next(i for i in range(99) if all(s.number != i for s in state.streams))
                    is_dead = state.reducers[link] < 0
                    stream = Stream(
                        free, rank, link, () if is_dead else (join,), (), True, not is_dead, is_dead, is_dead
                    )
                    state = state._replace(streams=tuple(sorted((*state.streams, stream))))
                case wa.Send(link, frame):
                    for stream in state.streams:
                        if (stream.rank, stream.reducer) == (rank, link) and stream.rank_end:
                            if not stream.is_up_cut and stream.reducer_end:
                                state = put(state, stream._replace(up=(*stream.up, frame)))
                case wa.Fail(error, is_over=False):
                    self._check_failure(state, rank, error)
                case wa.Closed() | wa.Fail():
                    if isinstance(action, wa.Fail):
                        self._check_failure(state, rank, action.error)
                    for stream in state.streams:
                        if stream.rank == rank:
                            state = put(state, stream._replace(rank_end=False, down=()))
        return state

    def _reducer(self, state: State_, index: int, event: Any, now: float) -> State_:
        number, actions = self._handle(state.reducers[index], event, now)
        reducers = list(state.reducers)
        reducers[index] = number
        state = State_(state.ranks, tuple(reducers), *state[2:])
        for action in actions:
            stream = next((s for s in state.streams if s.number == action.stream), None)
            if stream is None:
                continue
            match action:
                case ra.Send(_, frame):
                    if stream.rank_end and stream.reducer_end and not stream.is_down_cut:
                        state = put(state, stream._replace(down=(*stream.down, frame)))
                case ra.Close(_, error):
                    if error is not None and not self._may_relay(state, error):
                        raise Violation(f"reducer {index} refused rank {stream.rank}: {error}")
                    state = put(state, stream._replace(reducer_end=False, up=()))
        return state

    def found(self, state: State_) -> State_:
        return self._rank(state, 0, we.Found(tuple(f"reducer{index}" for index in range(self.k))), 0.0)

    def broken(self, state: State_, rank: int) -> State_:
        """Return the state after an error in a rank's process."""
        return self._rank(state, rank, we.Broke(OWN_ERROR), 0.0)

    def takes_part(self, state: State_, reducer: int) -> bool:
        """Return whether a reducer is a member of every rank's epoch, and that epoch has started."""
        epochs = [self._boxes[number].core.epochs for number in state.ranks if number >= 0]
        return all(
            one.is_calm and one.configuration.index_of(bytes([reducer, 0]) * 8) is not None for one in epochs
        )

    def is_goal(self, state: State_) -> bool:
        """Return whether every living rank has closed or failed, or can do nothing without reducers."""
        cores = [self._boxes[state.ranks[rank]].core for rank in self._alive(state)]
        # A rank that failed without all results had a reason, or `_check_failure` would have raised.
        if all(core.state in (State.CLOSED, State.FAILED) for core in cores):
            return True
        if self.mortal is not None or self.may_lack_reducers:
            return False
        # A closing rank has all results and leaves after close_timeout_s, which is not a step here.
        waits = any(core.state is State.OPEN for core in cores)
        return all(number < 0 for number in state.reducers) and not (state.restarts and waits)

    def _alive(self, state: State_) -> list[int]:
        return [rank for rank in range(self.n) if state.ranks[rank] >= 0]

    def _is_gone(self, state: State_, rank: int) -> bool:
        number = state.ranks[rank]
        return number < 0 or self._boxes[number].core.state is State.FAILED

    def _lacks_reducers(self, state: State_) -> bool:
        return self.may_lack_reducers and not state.restarts and min(state.reducers) < 0

    def _may_relay(self, state: State_, error: ReductionError) -> bool:
        """Return whether a reducer may end streams with this error, which a rank has reported to it."""
        if isinstance(error, WorkerLost):
            # A rank that closed may be named: a rank that misses its Goodbye considers it dead.
            ended = [other for other in range(self.n) if self._has_ended(state, other)]
            return any(rank_is_named(error, other) for other in ended)
        if isinstance(error, WorkerFailed):
            return self.fragile is not None
        return isinstance(error, ReducerUnavailable) and self._lacks_reducers(state)

    def _has_ended(self, state: State_, rank: int) -> bool:
        number = state.ranks[rank]
        return number < 0 or self._boxes[number].core.state in (State.CLOSED, State.FAILED)

    def _check_failure(self, state: State_, rank: int, error: ReductionError) -> None:
        """Raise Violation unless a rank without all results has a reason to fail and reports it."""
        gone = [other for other in range(self.n) if self._is_gone(state, other)]
        if any(rank_is_named(error, other) for other in gone):
            return
        if isinstance(error, ReducerUnavailable) and self._lacks_reducers(state):
            return
        who = "" if rank == self.fragile else f"rank {self.fragile} (host{self.fragile}): "
        if isinstance(error, WorkerFailed) and str(error).endswith(f"{who}{OWN_ERROR}"):
            return
        raise Violation(f"rank {rank} failed: {type(error).__name__}: {error}")


def rank_is_named(error: ReductionError, rank: int | None) -> bool:
    """Return whether the error says that this rank is lost, and where it ran."""
    return isinstance(error, WorkerLost) and f"rank {rank} (host{rank}) is gone" in str(error)


def _forget_times(core: RankCore) -> None:
    core.epochs.ack_due = None if core.epochs.ack_due is None else 0.05
    core.close_due = None if core.close_due is None else 5.0
    for thing in (core, core.epochs, core.roster, *core.roster, *core.window.outstanding.values()):
        for name in _TIMES:
            if getattr(thing, name, None) is not None:
                setattr(thing, name, 0.0)
    # Past warnings do not influence decisions.
    core.patience = Patience(core.identity.stall_warn_s, core._actions)
    core.stalls._warned_at.clear()
    # The next tick would find this out. Doing it now saves a state, whatever else happens before that tick.
    core.roster.update_met_since(core.identity.rank, core.identity.world_size, 0.0)
    for link in core.roster:
        link.lost_since = dict.fromkeys(link.lost_since, 0.0)
        if link.lane is not None:
            link.lane.moved_at = 0.0


def _short(frame: Any) -> str:
    if isinstance(frame, (Push, Result)):
        return f"{type(frame).__name__}(epoch {frame.epoch}, seq {frame.seq}, chunk {frame.chunk})"
    return str(frame)[:90]
