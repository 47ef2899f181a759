"""Workers that send any valid frame at any time: a reducer never raises, never leaks and never forgets a stream.

The ranks of `test_reducer_schedules` are honest; these break every rule of order. Numbers are few and small so that
frames interact: two jobs, two lives, three ranks, six streams.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.errors import MalformedFrame
from reduction.limits import JOB_FIXED_BYTES
from reduction.model import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Push,
    ReduceOp,
    Start,
    Welcome,
)

from reducer.core.actions import Close, Discard, Fold, Publish, Send
from reducer.core.events import Drain, Lost, Received, Rejected, Tick
from reducer.core.jobs import Jobs
from reducer.core.reservations import reservation

US, OTHER = b"this reducer....", b"another reducer."
LIVES = [b"the first life..", b"the second life."]
MEMBERS = [(Member("a:1", US),), (Member("a:1", US), Member("b:1", OTHER)), (Member("b:1", OTHER),)]
STREAMS = st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5])
SMALL = st.integers(0, 2)

JOINS = st.builds(
    Join,
    job=st.sampled_from(["left", "right"]),
    instance=st.sampled_from([b"", *LIVES]),
    rank=st.integers(0, 1),
    world_size=st.sampled_from([2, 2, 2, 3]),
    nonce=st.sampled_from([b"process 1.......", b"process 2......."]),
    host=st.just("h"),
    minimum=SMALL,
    credit_bytes=st.sampled_from([1024, 2048, 1 << 20]),
    protocol=st.sampled_from([*[PROTOCOL_VERSION] * 4, PROTOCOL_VERSION + 1]),
)
HELLOS = st.builds(
    Hello,
    configuration=st.builds(
        Configuration,
        instance=st.sampled_from(LIVES),
        epoch=st.integers(1, 3),
        chunk_bytes=st.sampled_from([1024, 2048, 4096]),
        members=st.sampled_from(MEMBERS),
    ),
    held=SMALL,
)
PUSHES = st.builds(
    Push,
    epoch=st.integers(0, 3),
    seq=SMALL,
    chunk=st.integers(0, 1),
    collective=st.builds(
        Collective, st.just(ReduceOp.SUM), st.just(DType.INT32), st.sampled_from([0, 4, 512]), SMALL
    ),
    held=SMALL,
    payload=st.sampled_from([0, 16, 1024, 2048]).map(lambda nbytes: memoryview(bytes(nbytes))),
)
#: Most noise is refused immediately; these pushes get further.
GOOD_PUSHES = st.builds(
    Push,
    epoch=st.integers(1, 2),
    seq=SMALL,
    chunk=st.just(0),
    collective=st.just(Collective(ReduceOp.SUM, DType.INT32, 4, 0)),
    held=SMALL,
    payload=st.just(memoryview(bytes(16))),
)
GOOD_HELLOS = st.builds(
    lambda life, epoch: Hello(Configuration(life, epoch, 1024, MEMBERS[0]), 0),
    st.sampled_from(LIVES),
    st.integers(1, 3),
)
FRAMES = st.one_of(
    JOINS,
    HELLOS,
    PUSHES,
    st.builds(Ack, SMALL),
    st.builds(Goodbye, SMALL, SMALL),
    st.builds(Abort, code=st.integers(0, 20), message=st.just("why")),
)
NOISE = st.one_of(
    *[st.builds(Received, STREAMS, GOOD_PUSHES)] * 5,
    *[st.builds(Received, STREAMS, GOOD_HELLOS)] * 2,
    *[st.builds(Received, STREAMS, FRAMES)] * 2,
    st.builds(Lost, STREAMS),
    st.builds(Rejected, STREAMS, st.just(MalformedFrame("noise"))),
    st.sampled_from([Tick(), Tick(), Drain()]),
)


def steady():
    """Yield the events of a running job, so that noise has something to disturb."""
    hello = Hello(Configuration(LIVES[0], 1, 1024, MEMBERS[0]), 0)
    for rank in (0, 1):
        yield Received(rank, Join("left", LIVES[0], rank, 2, b"process 1.......", "h", 0, 2048))
    for rank in (0, 1):
        yield Received(rank, hello)


class Watch:
    """Performs the actions and checks them against the invariants."""

    def __init__(self):
        self.jobs = Jobs(incarnation=US, memory_limit_bytes=2 * reservation(2, 2048) + JOB_FIXED_BYTES)
        #: Stream numbers of the script stand for connections; a new connection replaces a closed one.
        self.numbers = {stream: stream for stream in range(6)}
        self.next_number = 6
        self.sums = {}

    def take(self, event, now):
        if isinstance(event, Received | Lost | Rejected):
            event = replace(event, stream=self.numbers[event.stream])
        before = {number: job for number, (job, _) in self.jobs.streams.items()}
        over = {event.stream} if isinstance(event, Lost) else set()
        for action in self.jobs.handle(event, now):
            self._perform(action, over)
        after = set(self.jobs.streams)
        assert over.isdisjoint(after), "a stream that is over still belongs to a job"
        assert set(before) - after <= over, "a stream was forgotten without being closed"
        for number in over:
            self._reconnect(number)
        self._check()

    def _perform(self, action, over):
        match action:
            case Send(stream, frame):
                assert stream not in over, "sent after the end"
                assert isinstance(frame, Welcome | Start | Abort) or stream in self.jobs.streams
            case Close(stream):
                assert stream not in over, "closed twice"
                over.add(stream)
            case Fold(slot, _, payloads):
                for payload in payloads:
                    self.sums.setdefault(slot, []).append(payload.nbytes)
            case Publish():
                assert len(self.sums.pop(action.slot)) == action.divisor
                assert over.isdisjoint(action.streams)
            case Discard(slot):
                self.sums.pop(slot, None)

    def _reconnect(self, number):
        for script, present in self.numbers.items():
            if present == number:
                self.numbers[script] = self.next_number
                self.next_number += 1

    def _check(self):
        jobs = self.jobs.by_name.values()
        assert self.jobs.memory_reserved_bytes <= self.jobs.memory_limit_bytes
        slots = {(job.id, *key): slot for job in jobs for key, slot in job.slots.items()}
        assert {tuple(key) for key in self.sums} <= set(slots), "an accumulator without a slot"
        for job in jobs:
            mine = [slot for (owner, *_), slot in slots.items() if owner == job.id]
            kept = sum(view.nbytes for slot in mine for view in slot.kept.values())
            sums = sum(self.sums[key][0] for key in self.sums if key.job == job.id)
            assert kept + sums <= job.reserved_bytes - JOB_FIXED_BYTES
            streams = {view.stream for view in job.ranks.values() if view.stream is not None}
            owned = {number for number, (owner, _) in self.jobs.streams.items() if owner is job}
            assert streams == owned, "a rank and its stream do not belong together"
            assert owned, "a deserted job"


@settings(max_examples=3000)
@given(st.booleans(), st.lists(NOISE, max_size=40))
def test_arbitrary_frames(is_steady, script):
    watch = Watch()
    for step, event in enumerate([*(steady() if is_steady else ()), *script]):
        watch.take(event, 0.03 * step)
