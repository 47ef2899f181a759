"""A reducer with one job whose rank r is on stream r, and helpers to read its actions."""

from reduction.model import (
    Abort,
    Configuration,
    Hello,
    Join,
    Member,
    Peer,
    Peers,
    Presence,
    Push,
)
from support.scenes.jobs_scene import CREDIT, REDUCER
from support.scenes.jobs_scene import SUM3 as SUM

from reducer.core.actions import Close, Discard, Fold, Publish, Send, SlotKey
from reducer.core.events import Lost, Received, Tick
from reducer.core.jobs import Jobs

INSTANCE = b"instance-instanc"
#: Rank r's contribution to SUM.
DATA = [memoryview(bytes([rank]) * 12) for rank in range(3)]
US = (Member("a:1", REDUCER),)
PRESENCES = {"P": Presence.PRESENT, "L": Presence.LOST, "G": Presence.LEFT}


def nonce(rank):
    return bytes([rank]) * 16


def configuration(epoch=1, members=US, chunk_bytes=1024, instance=INSTANCE):
    return Configuration(instance, epoch, chunk_bytes, members)


class Scene:
    """A job whose first `joined` ranks have joined; by default all."""

    def __init__(self, world_size=2, *, credit=CREDIT, local_size=1, joined=None):
        self.jobs = Jobs(incarnation=REDUCER, memory_limit_bytes=1 << 30)
        self.world_size = world_size
        self.credit = credit
        self.local_size = local_size
        for rank in range(world_size if joined is None else joined):
            self.join(rank)

    @property
    def job(self):
        return self.jobs.by_name["job", ""]

    def join(self, rank, stream=None):
        who = "job", INSTANCE, rank, self.world_size, nonce(rank), f"h{rank}"
        join = Join(*who, 0, self.credit, local_size=self.local_size)
        return self.receive(rank if stream is None else stream, join)

    def receive(self, stream, frame, now=0.0):
        return self.jobs.handle(Received(stream, frame), now)

    def hello(self, *streams, held=0, now=0.0, **changes):
        """Let these ranks send Hello; return the last actions."""
        for stream in streams:
            actions = self.receive(stream, Hello(configuration(**changes), held), now)
        return actions

    def push(self, stream, seq=0, *, epoch=1, chunk=0, held=0, collective=SUM, payload=None, now=0.0):
        payload = DATA[stream] if payload is None else payload
        return self.receive(stream, Push(epoch, seq, chunk, collective, held, payload), now)

    def lose(self, stream, now=0.0):
        return self.jobs.handle(Lost(stream), now)

    def tick(self, now):
        return self.jobs.handle(Tick(), now)


def running(world_size=2, *, credit=CREDIT, local_size=1, **changes):
    """Return a scene whose ranks have all sent Hello."""
    scene = Scene(world_size, credit=credit, local_size=local_size)
    scene.hello(*range(world_size), **changes)
    return scene


def to_all(frame, *streams):
    return [Send(stream, frame) for stream in streams]


def seen(*marks, streams=1, draining=False):
    """Return the news of some ranks: 1, "P" for rank 1 present; L is lost, G gone after Goodbye."""
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return Peers(
        tuple(Peer(rank, nonce(rank), f"h{rank}", PRESENCES[mark], streams) for rank, mark in pairs), draining
    )


def fold(seq, *ranks, chunk=0, collective=SUM):
    return Fold(SlotKey(1, seq, chunk), collective, tuple(DATA[rank] for rank in ranks), collective.nbytes)


def publish(seq, world_size=2, *, epoch=1, chunk=0, minimum=0, streams=None):
    streams = tuple(range(world_size)) if streams is None else streams
    return Publish(SlotKey(1, seq, chunk), SUM, world_size, epoch, minimum, streams)


def discards(*keys):
    return [Discard(SlotKey(1, *key)) for key in keys]


def ends(actions, streams, error, *values):
    """Check that exactly these streams end, each after an Abort of this type whose text has the values.

    Returns:
        The other actions.
    """
    aborts, closes, others = {}, {}, []
    for action in actions:
        match action:
            case Send(stream, Abort() as abort):
                aborts[stream] = abort
            case Close(stream, reason):
                assert stream in aborts, "closed without a word"
                closes[stream] = reason
            case _:
                others.append(action)
    assert list(aborts) == list(closes) == list(streams)
    for stream, abort in aborts.items():
        assert type(closes[stream]) is error
        assert (abort.code, abort.message) == (error.code, str(closes[stream]))
        for value in values:
            assert str(value) in abort.message
    return others
