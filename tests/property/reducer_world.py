"""Several jobs on one real `reducer.core.jobs.Jobs`, over streams that delay, break and lose their last frames.

The world performs the actions of `Jobs`: a Fold records whose contributions were added, and a Publish checks the list.
"""

from __future__ import annotations

from property.honest_rank import CREDIT, END, US, Game, Rank, Stream
from reduction import limits
from reduction.model import (
    Collective,
    DType,
    Minimum,
    ReduceOp,
    Result,
    Start,
)

from reducer.core.actions import Close, Discard, Fold, Publish, Send
from reducer.core.events import Drain, Lost, Received, Tick
from reducer.core.jobs import Jobs


class World:
    """The reducer, its jobs and the network between them."""

    def __init__(self, *jobs):
        self.jobs = Jobs(incarnation=US, memory_limit_bytes=1 << 30)
        self.now = 0.0
        self.streams: list[Stream] = []
        self.tags: dict[int, tuple] = {}
        self.views: list[memoryview] = []
        self.sums: dict = {}
        self.counted: set = set()
        self.published: set = set()
        self.games = []
        for index, (world_size, numels) in enumerate(jobs):
            collectives = [
                Collective(ReduceOp.SUM, DType.FLOAT32, numel, 7) for numel in numels
            ]  # equal in all jobs, so collectives do not distinguish jobs
            game = Game(f"job{index}", world_size, collectives)
            game.ranks = [Rank(self, game, number) for number in range(world_size)]
            self.games.append(game)
        self.ranks = [rank for game in self.games for rank in game.ranks]

    def open(self, rank):
        self.streams.append(Stream(len(self.streams), rank))
        return self.streams[-1]

    def contribution(self, rank, seq, chunk, nbytes):
        """Return a payload that is distinguishable from all others, whatever its size."""
        view = memoryview(bytes(nbytes))
        self.views.append(view)
        self.tags[id(view)] = (rank.game.name, rank.epoch, rank.number, seq, chunk)
        return view

    # ---- steps ----

    def deliver_up(self, stream):
        frame = stream.up.popleft()
        if stream.is_open_there:
            self.handle(Lost(stream.number) if frame is END else Received(stream.number, frame))
            stream.is_open_there &= frame is not END

    def deliver_down(self, stream):
        frame, folded = stream.down.popleft()
        rank = stream.rank
        if rank.stream is not stream:
            return
        if frame is not END:
            rank.take(frame, folded)
        elif rank.has_left:
            rank.stream = None
            rank.is_welcome = False
        else:
            rank.cut(with_tail=True)

    def tick(self):
        self.now += 0.03
        self.handle(Tick())

    def drain(self):
        self.handle(Drain())

    # ---- performing ----

    def handle(self, event):
        for action in self.jobs.handle(event, self.now):
            self._perform(action)
        self.check_memory()

    def _perform(self, action):
        match action:
            case Send(number, frame):
                self._check_minimum(number, frame)
                self.streams[number].down.append((frame, None))
            case Close(number):
                assert self.streams[number].is_open_there, "closed twice"
                self.streams[number].is_open_there = False
                self.streams[number].down.append((END, None))
            case Fold(slot, _, payloads):
                for payload in payloads:
                    tag = self.tags[id(payload)]
                    assert tag not in self.counted, "a contribution counts once per epoch"
                    self.counted.add(tag)
                    self.sums.setdefault(slot, []).append(tag)
            case Publish():
                self._publish(action)
            case Discard(slot):
                self.sums.pop(slot, None)

    def _publish(self, action):
        folded = self.sums.pop(action.slot)
        name = folded[0][0]
        seq, chunk = action.slot.seq, action.slot.chunk
        assert folded == [(name, action.epoch, number, seq, chunk) for number in range(action.divisor)], (
            "every rank's contribution once, in rank order, of this job, epoch and chunk"
        )
        assert (name, action.epoch, seq, chunk) not in self.published, "one result per epoch and chunk"
        self.published.add((name, action.epoch, seq, chunk))
        result = Result(action.epoch, seq, chunk, action.minimum, memoryview(b""))
        for number in action.streams:
            stream = self.streams[number]
            assert (stream.rank.game.name, stream.is_open_there) == (name, True)
            self._check_minimum(number, result)
            stream.down.append((result, folded))
        job = self.jobs.by_name[name, ""]
        waiting = {view.stream for number, view in job.ranks.items() if number in job.hellos}
        assert set(action.streams) == waiting, "everybody who is there and has started gets it"

    def _check_minimum(self, number, frame):
        if isinstance(frame, Start | Minimum | Result):
            ranks = self.streams[number].rank.game.ranks
            assert frame.minimum <= min(rank.held for rank in ranks), "a rank does not hold this yet"

    def check_memory(self):
        """Check that kept contributions and accumulators of a job stay within the credit of its ranks."""
        for job in self.jobs.by_name.values():
            kept = sum(view.nbytes for slot in job.slots.values() for view in slot.kept.values())
            assert kept <= (job.world_size - 1) * CREDIT
            assert all(view.outstanding <= CREDIT for view in job.ranks.values())
            assert len(job.slots) <= job.world_size * CREDIT // limits.CHARGE_BYTES_MIN
        live = {job.id for job in self.jobs.by_name.values()}
        open_slots = {(job.id, *key) for job in self.jobs.by_name.values() for key in job.slots}
        assert {slot.job for slot in self.sums} <= live, "accumulators of a job that is gone"
        assert {tuple(slot) for slot in self.sums} <= open_slots, "accumulators of a slot that is gone"
