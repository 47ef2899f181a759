"""A slot: contributions in any order, folded in rank order."""

from itertools import permutations

import pytest
from reduction.errors import CollectiveMismatch, OutOfOrder
from reduction.model import Collective, DType, ReduceOp

from reducer.core.slot import Slot

SUM3 = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
SUM4 = Collective(ReduceOp.SUM, DType.FLOAT32, 4, 7)


def payload(rank):
    return memoryview(bytes([rank] * 12))


def test_rank_0_first_is_folded_at_once():
    slot = Slot(SUM3, 12, 12, first_rank=0, world_size=2)
    assert slot.on_push(0, SUM3, payload(0)) == (payload(0),)
    assert slot.missing
    assert slot.on_push(1, SUM3, payload(1)) == (payload(1),)
    assert not slot.missing


def test_higher_ranks_wait_for_lower_ones():
    slot = Slot(SUM3, 12, 12, first_rank=2, world_size=4)
    assert slot.on_push(2, SUM3, payload(2)) == ()
    assert slot.on_push(1, SUM3, payload(1)) == ()
    assert slot.on_push(0, SUM3, payload(0)) == (payload(0), payload(1), payload(2))
    assert slot.kept == {}
    assert slot.on_push(3, SUM3, payload(3)) == (payload(3),)


def test_a_gap_stops_the_fold():
    slot = Slot(SUM3, 12, 12, first_rank=3, world_size=4)
    assert slot.on_push(3, SUM3, payload(3)) == ()
    assert slot.on_push(0, SUM3, payload(0)) == (payload(0),)
    assert set(slot.kept) == {3}
    assert slot.on_push(2, SUM3, payload(2)) == ()
    assert slot.on_push(1, SUM3, payload(1)) == (payload(1), payload(2), payload(3))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_fold_order_does_not_depend_on_the_arrival_order(order):
    slot = Slot(SUM3, 12, 12, order[0], 4)
    folded = [view[0] for rank in order for view in slot.on_push(rank, SUM3, payload(rank))]
    assert folded == [0, 1, 2, 3]
    assert not slot.missing


def test_world_size_1_is_complete_with_its_only_push():
    slot = Slot(SUM3, 12, 12, 0, 1)
    assert slot.on_push(0, SUM3, payload(0)) == (payload(0),)
    assert not slot.missing


def test_has_knows_folded_and_kept_ranks():
    slot = Slot(SUM3, 12, 12, 0, 3)
    slot.on_push(0, SUM3, payload(0))
    slot.on_push(2, SUM3, payload(2))
    assert [slot.has(rank) for rank in range(3)] == [True, False, True]


@pytest.mark.parametrize("twice", [0, 2])
def test_the_same_rank_twice_is_refused_whether_folded_or_kept(twice):
    slot = Slot(SUM3, 12, 12, 0, 3)
    slot.on_push(0, SUM3, payload(0))
    slot.on_push(2, SUM3, payload(2))
    with pytest.raises(OutOfOrder, match=f"rank {twice} pushed the same chunk twice"):
        slot.on_push(twice, SUM3, payload(9))
    assert slot.on_push(1, SUM3, payload(1)) == (payload(1), payload(2)), "the slot is unchanged"


def test_disagreement_names_both_ranks_and_changes_nothing():
    slot = Slot(SUM3, 12, 12, 1, 2)
    slot.on_push(1, SUM3, payload(1))
    with pytest.raises(CollectiveMismatch) as caught:
        slot.on_push(0, SUM4, payload(0))
    assert str(caught.value) == f"rank 0 issued {SUM4}, but rank 1 issued {SUM3}"
    assert slot.on_push(0, SUM3, payload(0)) == (payload(0), payload(1))


def test_other_shares_of_top_k_are_a_disagreement():
    topk = Collective(ReduceOp.SUM, DType.TOPK, 1024, 7)
    five, six = (memoryview(bytes(k * 4 * 2)) for k in (5, 6))
    slot = Slot(topk, 2048, five.nbytes, 1, 2)
    slot.on_push(1, topk, five)
    with pytest.raises(CollectiveMismatch) as caught:
        slot.on_push(0, topk, six)
    assert str(caught.value) == (
        "rank 0 sends 6 elements of each block of 512 as TOPK, but rank 1 5: set wire_dtype alike on all ranks"
    )
    assert slot.on_push(0, topk, five) == (five, five)
