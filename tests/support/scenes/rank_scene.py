"""A rank's core between scripted reducers, for the tests of `worker_plugin.core`: events in, actions out.

Reducers are named by a letter: "a" is link 0 at address a:1 with the incarnation aaaaaaaaaaaaaaaa, and so on.
"""

from reduction.model import (
    Abort,
    Collective,
    Configuration,
    Configure,
    DType,
    Join,
    Member,
    Peer,
    Peers,
    Presence,
    ReduceOp,
    Result,
    Start,
    Welcome,
)

from worker_plugin.core.actions import Began, Divert, Fail, PushChunk, Send, Store
from worker_plugin.core.events import Close, Connect, Issued, Leave, Received, StreamLost, Tick
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore

INSTANCE = b"instance-instanc"
CREDIT = 4096
CHUNK = 1024
MARKS = {"P": Presence.PRESENT, "L": Presence.LOST, "G": Presence.LEFT}


def link_number(reducer):
    return ord(reducer) - ord("a")


def incarnation(reducer):
    return reducer.encode() * 16


def nonce(rank):
    return bytes([rank]) * 16


def peers(ranks, *, draining=False):
    """Return one rank per letter: P present, L lost, G gone after Goodbye, - never seen."""
    seen = tuple(
        Peer(rank, nonce(rank), f"h{rank}", MARKS[mark]) for rank, mark in enumerate(ranks) if mark != "-"
    )
    return Peers(seen, draining)


def epoch(number, reducers="ab", *, chunk_bytes=CHUNK, instance=INSTANCE, added=()):
    members = tuple(Member(f"{reducer}:1", incarnation(reducer)) for reducer in reducers)
    return Configuration(instance, number, chunk_bytes, members, added=added)


def of_kib(kib):
    """Return a collective of this many KiB, which has the same number of chunks."""
    return Collective(ReduceOp.SUM, DType.FLOAT32, kib * 256, 7)


def data(nbytes=CHUNK):
    return memoryview(bytes(nbytes))


class Scene:
    """One rank. Every method passes one event to its core and returns the actions."""

    def __init__(self, rank=0, reducers="ab", world_size=2, looked_up=(), **changes):
        fields = {
            "job": "job",
            "instance": b"" if rank else INSTANCE,
            "nonce": nonce(rank),
            "host": f"h{rank}",
            "rank": rank,
            "world_size": world_size,
            "chunk_bytes": CHUNK,
            "credit_bytes": CREDIT,
            "timeout_s": 600.0,
            "stall_warn_s": 5.0,
            "join_timeout_s": 60.0,
            "close_timeout_s": 5.0,
        }
        self.identity = Identity(**fields | changes)
        self.reducers = reducers
        self.core = RankCore(self.identity, [f"{reducer}:1" for reducer in reducers], looked_up)
        self.everybody = "P" * world_size
        self.diverted = []
        self.began = []

    # ---- events ----

    def handle(self, event, now=0.0):
        """Return the actions, except those that are stored: in `diverted`, by reducer, and in `began`."""
        actions = self.core.handle(event, now)
        self.diverted += [chr(ord("a") + action.link) for action in actions if isinstance(action, Divert)]
        self.began += [action.reducers for action in actions if isinstance(action, Began)]
        return [action for action in actions if not isinstance(action, (Divert, Began))]

    def tick(self, now):
        return self.handle(Tick(), now)

    def receive(self, reducer, frame, now=0.0):
        return self.handle(Received(link_number(reducer), frame), now)

    def welcome(self, reducer, now=0.0, credit=CREDIT):
        return self.receive(reducer, Welcome(incarnation(reducer), credit), now)

    def peers(self, reducer, ranks, now=0.0, **changes):
        return self.receive(reducer, peers(ranks, **changes), now)

    def start(self, reducer, number=1, minimum=0, now=0.0):
        return self.receive(reducer, Start(number, minimum), now)

    def result(self, reducer, seq, chunk=0, *, epoch=1, minimum=0, payload=None, now=0.0):
        payload = data() if payload is None else payload
        return self.receive(reducer, Result(epoch, seq, chunk, minimum, payload), now)

    def abort(self, reducer, error, now=0.0):
        return self.receive(reducer, Abort(error.code, str(error)), now)

    def issue(self, kib=1, now=0.0):
        return self.handle(Issued(of_kib(kib)), now)

    def lose(self, reducer, error=None, now=0.0):
        return self.handle(StreamLost(link_number(reducer), error), now)

    def connect(self, now=0.0):
        return self.handle(Connect(), now)

    def close(self, now=0.0):
        return self.handle(Close(), now)

    def leave(self, issued, now=0.0):
        """Notify the core that no collective beyond the first `issued` ones will follow."""
        return self.handle(Leave(issued), now)

    # ---- several events in one call ----

    def meet(self):
        """Dial, complete all handshakes and see every rank; return the last actions."""
        actions = self.tick(0.0)
        for reducer in self.reducers:
            self.welcome(reducer)
        for reducer in self.reducers:
            actions = self.peers(reducer, self.everybody)
        return actions

    def enter(self, number=1, **changes):
        """Receive rank 0's configuration, as another rank does."""
        configuration = epoch(number, **{"reducers": self.reducers} | changes)
        return self.receive(self.reducers[0], Configure(configuration))

    def run(self):
        """Go through all steps up to the first push."""
        self.meet()
        if self.identity.rank:
            self.enter()
        for reducer in self.reducers:
            self.start(reducer)
        return self

    # ---- what to expect ----

    def join(self, instance=None, minimum=0):
        who = self.identity
        return Join(
            "job",
            who.instance if instance is None else instance,
            who.rank,
            who.world_size,
            who.nonce,
            who.host,
            minimum,
            who.credit_bytes,
        )


def send(reducer, frame):
    return Send(link_number(reducer), frame)


def push(reducer, seq, chunk=0, *, kib=1, number=1, held=0, start=None, is_awaited=True):
    start = chunk * CHUNK if start is None else start
    stop = min(start + CHUNK, kib * 1024)
    return PushChunk(link_number(reducer), number, seq, chunk, of_kib(kib), held, start, stop, is_awaited)


def store(seq, start, *, nbytes=CHUNK):
    return Store(seq, start, start + nbytes, data(nbytes))


def failure(actions):
    """Return (class, text) of the one Fail among the actions."""
    (fail,) = [action for action in actions if isinstance(action, Fail)]
    return type(fail.error), str(fail.error)
