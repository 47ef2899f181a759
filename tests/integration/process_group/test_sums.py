"""All-reduces of the backend "reduction" in all of torch's forms: the same bits as those of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from reduction.errors import ConfigError
from support.training.through_reducers import passed_through

from worker_plugin.process.torch_version import WITH_BACKENDS, is_too_old
from worker_plugin.process_group import ReductionOptions

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
SHAPE = (7, 11)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8]


def group_of(rank: Any, reducers: list[str], **settings: Any) -> dist.ProcessGroup:
    group = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers, **settings))
    rank.cleanup.callback(dist.destroy_process_group, group)
    return group


def sums(rank: Any, reducers: list[str]) -> int:
    group = group_of(rank, reducers)
    for step, dtype in enumerate(DTYPES):
        for op in (SUM, AVG) if dtype.is_floating_point else (SUM,):
            tensor = rank.values(rank.number, SHAPE, dtype, step)
            dist.all_reduce(tensor, op, group=group)
            assert torch.equal(tensor, rank.expected(SHAPE, dtype, step, op)), (dtype, op)
    return passed_through(group)


def test_sums_are_the_fold_in_rank_order(
    ranks: Any, reducers: Callable[[int], list[str]], plane: str
) -> None:
    assert ranks.run(3, sums, reducers(2)) == [11] * 3


def in_all_forms(rank: Any, reducers: list[str]) -> int:
    group = group_of(rank, reducers)
    expected = rank.expected(SHAPE)

    def fresh() -> torch.Tensor:
        return rank.values(rank.number, SHAPE)

    one = fresh()
    work = dist.all_reduce(one, group=group, async_op=True)
    assert work.wait() is True
    assert torch.equal(one, expected)
    if is_too_old(torch.__version__, WITH_BACKENDS):  # newer versions only show wait and get_future
        assert work.is_completed()
        assert work.is_success()
        assert torch.equal(work.result()[0], expected)
    assert torch.equal(work.get_future().wait()[0], expected)
    assert work.wait() is True

    two = fresh()
    value = dist.all_reduce(two, group=group, async_op=True).get_future().wait()
    assert value[0] is two
    assert torch.equal(two, expected)

    assert torch.equal(functional.all_reduce(fresh(), "sum", group).wait(), expected)

    for arguments in (([three := fresh()],), (four := fresh(),), ([five := fresh()], SUM)):
        group.allreduce(*arguments).wait()
    for tensor in (three, four, five):
        assert torch.equal(tensor, expected)

    several = [fresh(), fresh()[:1].contiguous()]
    with dist._coalescing_manager(group=group):
        for tensor in several:
            dist.all_reduce(tensor, group=group)
    assert torch.equal(several[0], expected)
    assert torch.equal(several[1], expected[:1])

    turned = fresh().t()
    dist.all_reduce(turned, group=group)
    assert torch.equal(turned, expected.t())

    empty = torch.empty(0)
    dist.all_reduce(empty, group=group)

    complex_one = torch.full((3,), complex(1, rank.number))
    dist.all_reduce(complex_one, group=group)
    assert torch.equal(complex_one, torch.full((3,), complex(3, 3)))
    return passed_through(group)


def test_sums_in_all_of_torchs_forms(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    assert ranks.run(3, in_all_forms, reducers(2)) == [11] * 3


def everything_else(rank: Any, reducers: list[str]) -> int:
    """Run the collectives that reducers do not support and the inner group performs."""
    group, number = group_of(rank, reducers), rank.number
    bits = torch.tensor([1 << number])
    dist.all_reduce(bits, dist.ReduceOp.BOR, group=group)
    assert bits.item() == 7
    sparse = torch.eye(3)[number : number + 1].expand(3, 3).to_sparse()
    dist.all_reduce(sparse, group=group)
    assert torch.equal(sparse.to_dense(), torch.ones(3, 3))
    one = torch.tensor([float(number)])
    dist.broadcast(one, 2, group=group)
    assert one.item() == 2.0
    gathered = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(gathered, torch.tensor([float(number)]), group=group)
    assert [each.item() for each in gathered] == [0.0, 1.0, 2.0]
    whole = torch.zeros(3)
    dist.all_gather_into_tensor(whole, torch.tensor([float(number)]), group=group)
    assert whole.tolist() == [0.0, 1.0, 2.0]
    dist.reduce(one, 0, group=group)
    assert one.item() == (6.0 if number == 0 else one.item())
    parts = torch.zeros(2)
    dist.reduce_scatter_tensor(parts, torch.arange(6.0), group=group)
    assert parts.tolist() == [3.0 * (2 * number), 3.0 * (2 * number + 1)]
    if number == 0:
        dist.send(torch.ones(1), 1, group=group)
    elif number == 1:
        dist.recv(one, 0, group=group)
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, {"rank": number}, group=group)
    assert objects == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    dist.barrier(group=group)
    return passed_through(group)


def test_everything_else_goes_to_the_inner_group(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    assert ranks.run(3, everything_else, reducers(1)) == [0] * 3


def two_groups_of_each_half(rank: Any, reducers: list[str]) -> list[float]:
    """Use groups with the same ranks and with other ranks at the same time, under one job name."""
    halves = [
        dist.new_group(half, backend="reduction", pg_options=ReductionOptions(reducers=reducers, job="one"))
        for half in ([0, 1], [2, 3])
        for _ in range(2)
    ]
    mine = halves[2 * (rank.number // 2) :][:2]
    tensors = [torch.full((5,), 10.0**rank.number) for _ in mine]
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, mine, strict=True)]
    for work in works:
        work.wait()
    return [tensor[0].item() for tensor in tensors]


def test_each_group_is_a_job_of_its_own(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    answers = ranks.run(4, two_groups_of_each_half, reducers(2))
    assert answers == [[11.0] * 2] * 2 + [[1100.0] * 2] * 2


def many_small_ones(rank: Any, reducers: list[str]) -> None:
    group = group_of(rank, reducers)
    for number in range(30):
        tensor = torch.full((5,), float(number))
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == 3.0 * number
        dist.barrier(group=group)
        objects: list[Any] = [None] * 3
        dist.all_gather_object(objects, rank.number, group=group)
        dist.broadcast_object_list(objects, group=group)


def test_small_collectives_of_all_kinds_never_hang(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    """With one method left to torch's base class, half of these loops hung (process_group/inner.py)."""
    for _ in range(20):
        ranks.run(3, many_small_ones, reducers(1))


def continuations_that_wait(rank: Any, reducers: list[str]) -> list[float]:
    """Let each of 40 continuations wait for another all-reduce, as torch's PowerSGD hook does."""
    group = group_of(rank, reducers)

    def again(done: Any) -> float:
        tensor = done.value()[0].clone()
        dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()
        return tensor[0].item()

    # Only one at a time on each rank: continuations must issue in the same order on all ranks.
    return [
        dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().then(again).wait()
        for _ in range(40)
    ]


def test_continuations_may_wait_for_collectives(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    assert ranks.run(2, continuations_that_wait, reducers(1)) == [[4.0] * 40] * 2


def wrong_options(rank: Any, reducers: list[str]) -> list[str]:
    makers = (
        lambda: ReductionOptions(rank=1),
        lambda: dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers="nonsense")),
        lambda: dist.new_group(backend="reduction", pg_options=dist.ProcessGroupGloo._Options()),
    )
    errors = [rank.error_of(make) for make in makers]
    assert all(isinstance(error, ConfigError) for error in errors), errors
    return [str(error) for error in errors]


def test_wrong_options_are_refused(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    first, second, third = ranks.run(2, wrong_options, reducers(1))[0]
    assert "rank of a process group cannot be set" in first
    assert "nonsense" in second
    assert "ReductionOptions" in third
