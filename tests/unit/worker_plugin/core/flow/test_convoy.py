"""A convoy: lanes with different shares keep in step, and none waits forever."""

import random

from reduction.model import Collective, Configuration, DType, Member, ReduceOp

from worker_plugin.core.flow.convoy import LEAD_CHUNKS, LEAD_CHUNKS_LEAST, Convoy
from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.window import Window

KIB = 1024
CREDIT = 1 << 30


class Convoys:
    """One rank's lanes to members with these weights, in chunks of a KiB."""

    def __init__(self, *weights, credit=CREDIT):
        members = tuple(Member(f"{n}:1", bytes([n]) * 16, weight) for n, weight in enumerate(weights))
        configuration = Configuration(bytes(16), 1, KIB, members)
        self.window = Window()
        self.window.regrid(KIB)
        self.convoy = Convoy(configuration)
        self.lanes = [
            Lane(configuration, index, credit, 0, None, self.convoy) for index in range(len(weights))
        ]

    def issue(self, kib):
        self.window.issue(Collective(ReduceOp.SUM, DType.FLOAT32, kib * 256, 7))

    def update(self):
        for lane in self.lanes:
            lane.find(self.window)
        self.convoy.update(self.lanes)

    def push(self, index):
        """Return how many chunks the lane may push now."""
        count = 0
        while self.lanes[index].next_push(self.window) is not None:
            count += 1
        return count

    def answer(self, index):
        """Deliver the result of the lane's oldest push; return whether the others may advance."""
        lane = self.lanes[index]
        holds_up = self.convoy.holds_up(lane)
        assert lane.on_result(*lane.pending[0][:2])
        return holds_up


def test_equal_lanes_need_no_convoy():
    scene = Convoys(1, 1)
    assert not scene.convoy.is_needed
    scene.issue(64)
    assert [scene.push(0), scene.push(1)] == [32, 32]


def test_no_lane_is_more_than_the_lead_ahead_of_the_slowest():
    scene = Convoys(2, 1)
    scene.issue(48)
    scene.update()
    assert scene.push(0) == LEAD_CHUNKS + 1  # includes the one at the limit
    assert scene.push(1) == 3  # the same fraction, in its own chunks
    for _ in range(LEAD_CHUNKS):
        assert not scene.answer(0) or scene.push(0) == 0
    assert scene.answer(1)
    scene.update()
    assert scene.push(0) == 2, "the slow lane has a chunk behind it, which counts for two"


def test_a_lane_with_a_small_share_has_more_than_one_chunk_under_way():
    scene = Convoys(8, 1)
    scene.issue(72)
    scene.update()
    assert scene.push(1) == LEAD_CHUNKS_LEAST + 1  # includes the one at the limit
    assert scene.push(0) == 8 * LEAD_CHUNKS_LEAST + 1


def test_a_lane_without_work_holds_nobody_up():
    scene = Convoys(3, 1)
    scene.issue(1)  # one chunk, for one of the lanes
    scene.issue(1)
    scene.update()
    pushed = [scene.push(0), scene.push(1)]
    assert sorted(pushed) in ([0, 2], [1, 1])
    idle = pushed.index(min(pushed))
    for _ in range(max(pushed)):
        scene.answer(1 - idle)
    scene.update()
    if not pushed[idle]:
        assert scene.lanes[idle].oldest == float("inf")
    scene.issue(64)
    scene.update()
    assert scene.push(0)
    assert scene.push(1)


def test_ranks_that_push_and_receive_in_any_order_always_finish():
    for seed in range(60):
        generator = random.Random(seed)
        weights = [generator.choice((1, 3, 14, 1000, 66)) for _ in range(generator.randint(2, 5))]
        sizes = [generator.choice((0, 1, 3, 17, 64)) for _ in range(6)]
        ranks = [Convoys(*weights, credit=generator.choice((KIB, 4 * KIB, CREDIT))) for _ in range(3)]
        for scene in ranks:
            for kib in sizes:
                scene.issue(kib)
            scene.update()
        members = range(len(weights))
        pushed = {(r, m): 0 for r in range(3) for m in members}
        done = [0 for _ in members]
        heard = {(r, m): 0 for r in range(3) for m in members}
        while True:
            moves = [(r, m, is_push) for r, m in pushed for is_push in (False, True)]
            generator.shuffle(moves)
            for r, m, is_push in moves:
                scene = ranks[r]
                if is_push and scene.lanes[m].next_push(scene.window) is not None:
                    pushed[r, m] += 1
                    done[m] = min(pushed[rank, m] for rank in range(3))
                    break
                if not is_push and heard[r, m] < done[m]:
                    scene.answer(m)
                    heard[r, m] += 1
                    scene.update()
                    break
            else:
                break
        for scene in ranks:
            assert all(lane.seq == len(sizes) for lane in scene.lanes), (seed, weights, sizes)
            assert all(not lane.pending for lane in scene.lanes)
