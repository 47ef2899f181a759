"""A lane: the order of the pushes on one stream in one epoch, and their credit."""

from reduction.model import Collective, Configuration, DType, Member, ReduceOp

from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.window import Window

INSTANCE = bytes(16)


def window_of(*sizes, chunk_bytes=1024):
    """Return a window with collectives of this many KiB."""
    window = Window()
    window.regrid(chunk_bytes)
    for kib in sizes:
        issue(window, kib)
    return window


def issue(window, kib):
    window.issue(Collective(ReduceOp.SUM, DType.FLOAT32, kib * 256, 7))


def lane_of(index=0, weights=(1,), credit=4096, first=0, chunk_bytes=1024):
    members = tuple(Member(f"{n}:1", bytes([n]) * 16, weight) for n, weight in enumerate(weights))
    return Lane(Configuration(INSTANCE, 1, chunk_bytes, members), index, credit, first)


def pushes(lane, window):
    """Return all pushes that credit allows, as (seq, chunk)."""
    found = []
    while (push := lane.next_push(window)) is not None:
        found.append(push[:2])
    return found


def test_pushes_go_in_order_of_seq_and_chunk_with_their_byte_ranges():
    window = window_of(2, 0, 1)
    lane = lane_of()
    assert lane.next_push(window)[:4] == (0, 0, 0, 1024)
    assert lane.next_push(window)[:4] == (0, 1, 1024, 2048)
    assert lane.next_push(window)[:4] == (1, 0, 0, 0)
    assert lane.next_push(window)[:4] == (2, 0, 0, 1024)
    assert lane.next_push(window) is None
    issue(window, 1)
    lane.on_result(0, 0)
    assert lane.next_push(window)[:4] == (3, 0, 0, 1024)


def test_each_member_pushes_its_own_run_beginning_at_seq_mod_k():
    window = window_of(4, 4, 1)
    credit = 1 << 20
    assert pushes(lane_of(0, (1, 1), credit), window) == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 0)]
    assert pushes(lane_of(1, (1, 1), credit), window) == [(0, 2), (0, 3), (1, 0), (1, 1)]


def test_weights_deal_more_chunks_to_one_member():
    window = window_of(4)
    assert pushes(lane_of(0, (3, 1)), window) == [(0, 0), (0, 1), (0, 2)]
    assert pushes(lane_of(1, (3, 1)), window) == [(0, 3)]


def test_the_first_collective_is_the_starts_minimum():
    assert pushes(lane_of(first=2), window_of(1, 1, 1)) == [(2, 0)]


def test_credit_stops_and_a_result_lets_the_next_one_go():
    window = window_of(4)
    lane = lane_of(credit=2048)
    assert pushes(lane, window) == [(0, 0), (0, 1)]
    assert lane.in_flight == 2048
    assert lane.on_result(0, 0)
    assert pushes(lane, window) == [(0, 2)]


def test_an_empty_push_costs_credit_too():
    assert pushes(lane_of(credit=2048), window_of(0, 0, 0)) == [(0, 0), (1, 0)]


def test_one_chunk_may_always_go():
    window = window_of(8, chunk_bytes=4096)
    lane = lane_of(credit=1024)
    assert pushes(lane, window) == [(0, 0)]
    assert lane.on_result(0, 0)
    assert pushes(lane, window) == [(0, 1)]


def test_results_must_come_in_the_order_of_the_pushes():
    window = window_of(2, 1)
    lane = lane_of()
    assert not lane.on_result(0, 0), "nothing was pushed"
    pushes(lane, window)
    assert not lane.on_result(0, 1)
    assert not lane.on_result(1, 0)
    assert lane.on_result(0, 0)
    assert not lane.on_result(0, 0), "a second time"
    assert lane.on_result(0, 1)
    assert lane.on_result(1, 0)
    assert (lane.in_flight, len(lane.pending)) == (0, 0)


def test_only_the_oldest_push_is_next():
    window = window_of(2, 1)
    lane = lane_of()
    assert lane.on_result(0, 0) is None, "nothing was pushed"
    pushes(lane, window)
    for seq, chunk in ((0, 0), (0, 1), (1, 0)):
        for key in {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)} - {(seq, chunk)}:
            assert lane.on_result(*key) is None
        assert lane.on_result(seq, chunk)
    assert lane.on_result(1, 0) is None, "all are back"


def test_seq_is_the_first_collective_not_wholly_pushed():
    window = window_of(2, 2)
    lane = lane_of(credit=3072)
    pushes(lane, window)
    assert lane.seq == 1, "chunk 1 of collective 1 has to wait"
    lane.on_result(0, 0)
    pushes(lane, window)
    assert lane.seq == 2


def test_a_delivered_collective_is_pushed_again_on_the_grid_of_the_epoch_that_asks_for_it():
    # This rank holds it, another one does not: all must push the same chunks.
    window = window_of(4, 4)
    for chunk in range(4):
        window.take(0, chunk)
    window.regrid(2048)
    lane = lane_of(credit=1 << 20, chunk_bytes=2048)
    assert [push and push[:4] for push in (lane.next_push(window) for _ in range(5))] == [
        (0, 0, 0, 2048),
        (0, 1, 2048, 4096),
        (1, 0, 0, 2048),
        (1, 1, 2048, 4096),
        None,
    ]
