"""An honest worker for `reducer_world`: it obeys the protocol, at any pace and in any order that it allows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from reduction import layout
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    Configure,
    Goodbye,
    Hello,
    Join,
    Minimum,
    Peers,
    Presence,
    Push,
    Result,
    Start,
    Welcome,
)

US, OTHER = b"this reducer....", b"another reducer."
CREDIT = 3072
END = object()


@dataclass(eq=False)
class Stream:
    """A connection and the frames in flight on it in both directions; END is its end."""

    number: int
    rank: Rank
    up: deque = field(default_factory=deque)
    down: deque = field(default_factory=deque)
    is_open_there: bool = True


@dataclass(eq=False)
class Game:
    """A job: the common state of its ranks."""

    name: str
    world_size: int
    collectives: list[Collective]
    ranks: list[Rank] = field(default_factory=list)
    refusals: list[Abort] = field(default_factory=list)

    @property
    def instance(self):
        return f"{self.name:.>16}".encode()

    @property
    def is_everywhere_done(self):
        return all(rank.held == len(self.collectives) for rank in self.ranks)


class Rank:
    """A worker that follows the protocol: one stream, one epoch, its pushes and its results."""

    def __init__(self, world, game, number):
        self.world, self.game, self.number = world, game, number
        self.nonce = f"{game.name}/{number:.>14}"[-16:].encode()
        self.stream: Stream | None = None
        self.is_welcome = self.is_broken = self.has_left = self.sees_left = False
        self.instance = game.instance if number == 0 else b""
        self.configuration: Configuration | None = None
        self.hello_epoch = 0
        self.seen: dict[int, Presence] = {}
        #: Number of streams that each rank has had, as far as known.
        self.streams: dict[int, int] = {}
        self.issued = self.held = self.minimum = 0
        #: Results by seq, then by chunk; kept once complete.
        self.results: dict[int, dict[int, list]] = {}
        self._stop()

    def _stop(self):
        self.is_started = False
        self.todo: deque = deque()
        self.pending: deque = deque()
        self.in_flight = 0

    @property
    def epoch(self):
        return self.configuration.epoch if self.configuration else 0

    # ---- steps that it may take on its own ----

    def connect(self):
        self.stream = self.world.open(self)
        self.is_welcome = False
        self.seen, self.streams = {}, {}
        game = self.game
        self.stream.up.append(
            Join(
                game.name, self.instance, self.number, game.world_size, self.nonce, "h", self.minimum, CREDIT
            )
        )

    def cut(self, *, with_tail):
        """Lose the stream with the frames in flight to this rank, and without `with_tail` also those to the reducer."""
        if not with_tail:
            self.stream.up.clear()
        self.stream.up.append(END)
        self.stream = None
        self.is_welcome = False
        self.is_broken = True
        self._stop()

    def issue(self):
        self.issued += 1
        self._plan(self.issued - 1)

    def next_push(self):
        """Return the next push if credit allows it, or None."""
        if not (self.is_started and self.is_welcome and self.todo):
            return None
        seq, chunk, start, stop = self.todo[0]
        if self.pending and self.in_flight + layout.charge(stop - start) > CREDIT:
            return None
        return seq, chunk, start, stop

    def push(self):
        seq, chunk, start, stop = self.next_push()
        self.todo.popleft()
        self.pending.append((seq, chunk, layout.charge(stop - start)))
        self.in_flight += layout.charge(stop - start)
        payload = self.world.contribution(self, seq, chunk, stop - start)
        collective = self.game.collectives[seq]
        self.stream.up.append(Push(self.epoch, seq, chunk, collective, self.held, payload))

    def acknowledge(self):
        self.stream.up.append(Ack(self.held))

    def may_configure(self):
        """Return whether this is rank 0 and all ranks are present. It may then create an epoch; after a cut it must."""
        here = [self.seen.get(number) is Presence.PRESENT for number in range(self.game.world_size)]
        return self.number == 0 and self.is_welcome and all(here)

    def configure(self, members, chunk_bytes):
        self.enter(Configuration(self.instance, self.epoch + 1, chunk_bytes, members))

    def may_leave(self):
        done = self.held == len(self.game.collectives)
        is_known = self.minimum == self.held or self.sees_left
        return self.is_welcome and not self.has_left and done and is_known

    def leave(self):
        self.stream.up.append(Goodbye(self.held, self.minimum))
        self.has_left = True

    # ---- handling of frames ----

    def enter(self, configuration):
        if self.configuration and self.configuration.chunk_bytes != configuration.chunk_bytes:
            self.results = {seq: done for seq, done in self.results.items() if seq < self.held}
        self.configuration = configuration
        self.instance = configuration.instance
        self.is_broken = False
        self._stop()
        self._greet()

    def _greet(self):
        if self.configuration and self.is_welcome and self.hello_epoch < self.epoch:
            self.hello_epoch = self.epoch
            self.stream.up.append(Hello(self.configuration, self.held))

    def take(self, frame, folded):
        match frame:
            case Welcome():
                self.is_welcome = True
                self._greet()
            case Configure(configuration):
                assert configuration.instance == self.game.instance, "a frame of another job"
                if configuration.epoch > self.epoch:
                    self.enter(configuration)
            case Start(epoch, minimum) if epoch == self.epoch:
                assert not self.is_started
                self.is_started = True
                for seq in range(minimum, self.issued):
                    self._plan(seq)
            case Result(epoch, seq, chunk, _, _) if epoch == self.epoch:
                self._on_result(seq, chunk, folded)
            case Peers(peers):
                assert {peer.nonce for peer in peers} <= {rank.nonce for rank in self.game.ranks}
                concerning = [peer for peer in peers if not peer.rank or peer.presence is Presence.LEFT]
                assert self.number == 0 or concerning == list(peers)
                for peer in peers:
                    self.is_broken |= self.streams.get(peer.rank, peer.streams) != peer.streams
                    self.streams[peer.rank] = peer.streams
                    self.seen[peer.rank] = peer.presence
                self.is_broken |= Presence.LOST in self.seen.values()
                self.sees_left |= Presence.LEFT in self.seen.values()
            case Abort():
                self.game.refusals.append(frame)
        if isinstance(frame, Start | Minimum | Result):
            self.minimum = max(self.minimum, min(frame.minimum, self.held))

    def _on_result(self, seq, chunk, folded):
        assert self.pending, "a result that nobody asked for"
        assert self.pending[0][:2] == (seq, chunk), "results come in the order of the pushes"
        self.in_flight -= self.pending.popleft()[2]
        if seq >= self.held:
            self.results.setdefault(seq, {})[chunk] = folded
        self._raise_held()

    def _raise_held(self):
        while self.held < self.issued and set(self._run(self.held)) <= set(self.results.get(self.held, {})):
            self.held += 1

    def _run(self, seq):
        """Return this reducer's chunks of a collective; the other reducer's results count as held."""
        collective = self.game.collectives[seq]
        chunks = layout.chunk_count(
            collective.numel, collective.dtype.itemsize, self.configuration.chunk_bytes
        )
        return layout.deal(chunks, self.configuration.weights, seq)[self.configuration.index_of(US)]

    def _plan(self, seq):
        if self.is_started:
            collective = self.game.collectives[seq]
            for chunk in self._run(seq):
                span = layout.chunk_range(
                    chunk, collective.numel, collective.dtype.itemsize, self.configuration.chunk_bytes
                )
                self.todo.append((seq, chunk, *span))
            self._raise_held()
