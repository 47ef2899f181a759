"""Windows and lanes of several ranks against a perfect reducer: credit, order, release, progress.

Ranks issue, push and take results at any pace, and epochs change members, weights and grid at any moment. The reducer
is minimal: a chunk's result exists once all ranks have pushed it.
"""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from reduction import layout
from reduction.model import Collective, Configuration, DType, Member, ReduceOp

from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.window import Window

#: Elements of 8 bytes: empty, less than a chunk, one chunk, several, not a whole number of them.
SIZES = st.lists(st.sampled_from([0, 1, 128, 129, 300, 1000]), min_size=1, max_size=12)
WEIGHTS = [(1,), (1, 1), (3, 1), (1, 2, 1)]
GRIDS = [1024, 2048]


class Rank:
    """One rank's window, and its lanes in the current epoch."""

    def __init__(self):
        self.window = Window()
        self.lanes: list[Lane] = []
        #: Per lane, the pushes of this epoch and the results in flight.
        self.pushed: list[list] = []
        self.results: list[deque] = []

    def enter(self, configuration, first, credits):
        self.window.regrid(configuration.chunk_bytes)
        self.lanes = [Lane(configuration, index, credit, first) for index, credit in enumerate(credits)]
        self.pushed = [[] for _ in self.lanes]
        self.results = [deque() for _ in self.lanes]


class World:
    """All ranks and their common knowledge."""

    def __init__(self, world_size, sizes, credit_bytes):
        self.collectives = [Collective(ReduceOp.SUM, DType.FLOAT64, size, 7) for size in sizes]
        self.credit_bytes = credit_bytes
        self.ranks = [Rank() for _ in range(world_size)]
        self.epoch = 0
        self.configuration = None
        self.new_epoch(0)

    @property
    def minimum(self):
        return min(rank.window.held for rank in self.ranks)

    # ---- steps; `pick` selects the subject where there is a choice ----

    def new_epoch(self, pick):
        weights = WEIGHTS[pick % len(WEIGHTS)]
        chunk_bytes = GRIDS[pick // 4 % len(GRIDS)]
        members = tuple(Member(f"{n}:1", bytes([n]) * 16, weight) for n, weight in enumerate(weights))
        self.epoch += 1
        self.configuration = Configuration(bytes(16), self.epoch, chunk_bytes, members)
        self.first = self.minimum
        for rank in self.ranks:
            rank.enter(self.configuration, self.first, [self.credit_bytes] * len(members))

    def issue(self, pick):
        window = self.ranks[pick % len(self.ranks)].window
        if window.issued < len(self.collectives):
            window.issue(self.collectives[window.issued])

    def push(self, pick):
        rank = self.ranks[pick % len(self.ranks)]
        index = pick // len(self.ranks) % len(rank.lanes)
        lane = rank.lanes[index]
        push = lane.next_push(rank.window)
        assert lane.in_flight == sum(pending.cost for pending in lane.pending)
        assert lane.in_flight <= self.credit_bytes or len(lane.pending) == 1
        if push is None:
            return
        self.check_push(rank, index, push)
        rank.pushed[index].append(push)
        if all(len(other.pushed[index]) >= len(rank.pushed[index]) for other in self.ranks):
            for other in self.ranks:
                other.results[index].append(push)

    def result(self, pick):
        rank = self.ranks[pick % len(self.ranks)]
        index = pick // len(self.ranks) % len(rank.lanes)
        if not rank.results[index]:
            return
        lane, push = rank.lanes[index], rank.results[index].popleft()
        for seq, chunk in {(0, 0), *(pending[:2] for pending in lane.pending)} - {push[:2]}:
            assert lane.on_result(seq, chunk) is None, "not the oldest push"
        assert lane.on_result(push.seq, push.chunk) == push
        assert lane.pending or lane.on_result(push.seq, push.chunk) is None, "a second time"
        if rank.window.needs(push.seq, push.chunk):
            rank.window.take(push.seq, push.chunk)

    def release(self, pick):
        """Tell a rank the current minimum or an earlier one."""
        rank = self.ranks[pick % len(self.ranks)]
        window = rank.window
        window.minimum = max(window.minimum, min(self.minimum, window.minimum + pick // len(self.ranks)))
        for seq in window.release(min(lane.seq for lane in rank.lanes)):
            assert all(other.window.held > seq for other in self.ranks), "somebody may still need it"
            for index in range(len(rank.lanes)):
                pushed = [chunk for at, chunk, *_ in rank.pushed[index] if at == seq]
                asked = self.run(index, seq) if seq >= self.first else []
                assert pushed == list(asked), "not wholly pushed in this epoch"
        assert window.released <= window.minimum <= window.held <= window.issued
        assert set(window.outstanding) == set(range(window.released, window.issued))

    # ---- what must hold ----

    def run(self, index, seq):
        collective = self.collectives[seq]
        chunks = layout.chunk_count(collective.numel, 8, self.configuration.chunk_bytes)
        return layout.deal(chunks, self.configuration.weights, seq)[index]

    def check_push(self, rank, index, push):
        seq, chunk, start, stop, *_ = push
        assert chunk in self.run(index, seq), "another member's chunk"
        numel = self.collectives[seq].numel
        assert (start, stop) == layout.chunk_range(chunk, numel, 8, self.configuration.chunk_bytes)
        assert rank.pushed[index] == [] or rank.pushed[index][-1][:2] < (seq, chunk), "in order, and once"
        place = len(rank.pushed[index])
        for other in self.ranks:
            at_the_same_place = other.pushed[index][place : place + 1]
            assert at_the_same_place in ([], [push]), "all ranks push the same chunks in the same order"


STEPS = [World.push] * 6 + [World.result] * 6 + [World.issue] * 2 + [World.release] * 2
RARE = World.new_epoch


@settings(max_examples=1500)
@given(
    st.integers(1, 4),
    SIZES,
    st.sampled_from([1024, 2048, 5000, 1 << 20]),
    st.binary(min_size=100, max_size=800),
)
def test_any_pace_finishes_within_credit_and_in_order(world_size, sizes, credit_bytes, schedule):
    world = World(world_size, sizes, credit_bytes)
    for kind, pick in zip(schedule[::2], schedule[1::2], strict=False):
        step = RARE if kind >= 250 else STEPS[kind % len(STEPS)]
        step(world, pick)
    # From here on all ranks continue without a pause, and none may wait forever.
    for _ in range(4000):
        if world.minimum == len(sizes):
            break
        for pick in range(world_size * len(world.configuration.members)):
            world.issue(pick)
            world.push(pick)
            world.result(pick)
    for rank in world.ranks:
        assert rank.window.is_idle
        assert rank.window.held == len(sizes)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_held_rises_with_no_gap_whatever_the_order_of_results(kibs, random):
    window = Window()
    window.regrid(1024)
    chunks = []
    for seq, kib in enumerate(kibs):
        window.issue(Collective(ReduceOp.SUM, DType.FLOAT64, kib * 128, 7))
        chunks += [(seq, chunk) for chunk in range(kib)]
    missing = dict(enumerate(kibs))
    random.shuffle(chunks)
    for seq, chunk in chunks:
        missing[seq] -= 1
        assert window.take(seq, chunk) == (missing[seq] == 0)
        whole = [at for at in range(len(kibs)) if missing[at] == 0]
        assert window.held == next((at for at in range(len(kibs)) if at not in whole), len(kibs))
