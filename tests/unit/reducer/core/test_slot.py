"""A slot: contributions in any order, folded in rank order."""

from itertools import permutations

import pytest
from reduction.errors import CollectiveMismatch, OutOfOrder
from reduction.model import Collective, DType, ReduceOp

from reducer.core.slot import Slot

SUM3 = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
SUM4 = Collective(ReduceOp.SUM, DType.FLOAT32, 4, 7)
TOPK = Collective(ReduceOp.SUM, DType.TOPK, 1024, 7)


def payload(rank):
    return memoryview(bytes([rank] * 12))


@pytest.mark.parametrize("order", [order for size in range(1, 5) for order in permutations(range(size))])
def test_contributions_are_folded_as_soon_as_possible_in_rank_order(order):
    slot = Slot(SUM3, 12, 12, order[0], len(order))
    folded, came = [], set()
    for rank in order:
        assert slot.missing
        folded += [view[0] for view in slot.on_push(rank, SUM3, payload(rank))]
        came.add(rank)
        assert folded == list(range(len(folded))), "out of order"
        assert len(folded) not in came, "it could have been folded"
        assert [slot.has(other) for other in order] == [other in came for other in order]
    assert not slot.missing
    assert slot.kept == {}


@pytest.fixture
def waiting():
    """A slot of three ranks: the first is folded, the last is kept until rank 1 arrives."""
    slot = Slot(SUM3, 12, 12, 0, 3)
    for rank in (0, 2):
        slot.on_push(rank, SUM3, payload(rank))
    return slot


@pytest.mark.parametrize(
    ("rank", "collective", "error", "text"),
    [
        (0, SUM3, OutOfOrder, "rank 0 pushed the same chunk twice"),
        (2, SUM3, OutOfOrder, "rank 2 pushed the same chunk twice"),
        (1, SUM4, CollectiveMismatch, f"rank 1 issued {SUM4}, but rank 0 issued {SUM3}"),
    ],
)
def test_refused_pushes_change_nothing(waiting, rank, collective, error, text):
    with pytest.raises(error) as caught:
        waiting.on_push(rank, collective, payload(9))
    assert text in str(caught.value)
    assert waiting.on_push(1, SUM3, payload(1)) == (payload(1), payload(2))


def test_different_top_k_shares_are_a_mismatch():
    five, six = (memoryview(bytes(k * 4 * 2)) for k in (5, 6))
    slot = Slot(TOPK, 2048, five.nbytes, 1, 2)
    slot.on_push(1, TOPK, five)
    with pytest.raises(
        CollectiveMismatch, match=r"^rank 0 sends 6 .* block of 512 as TOPK, but rank 1 sends 5:"
    ):
        slot.on_push(0, TOPK, six)
    assert slot.on_push(0, TOPK, five) == (five, five)
