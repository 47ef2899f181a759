"""A lane's credit, and the progress it reports; the order of pushes and results is in tests/property."""

from reduction.model import Collective, Configuration, DType, Member, ReduceOp

from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.window import Window


def window_of(*sizes):
    """Return a window with collectives of these sizes in KiB, in chunks of one KiB."""
    window = Window()
    window.regrid(1024)
    for kib in sizes:
        window.issue(Collective(ReduceOp.SUM, DType.FLOAT32, kib * 256, 7))
    return window


def lane_of(credit):
    return Lane(Configuration(bytes(16), 1, 1024, (Member("a:1", bytes(16)),)), 0, credit, 0)


def pushes(lane, window):
    """Return all pushes that the credit allows, as (seq, chunk)."""
    return [push[:2] for push in iter(lambda: lane.next_push(window), None)]


def test_an_empty_push_costs_credit_too():
    assert pushes(lane_of(credit=2048), window_of(0, 0, 0)) == [(0, 0), (1, 0)]


def test_seq_is_the_first_collective_not_wholly_pushed():
    window = window_of(2, 2)
    lane = lane_of(credit=3072)
    assert pushes(lane, window) == [(0, 0), (0, 1), (1, 0)]
    assert lane.seq == 1, "chunk 1 of collective 1 has to wait"
    lane.on_result(0, 0)
    assert pushes(lane, window) == [(1, 1)]
    assert lane.seq == 2
