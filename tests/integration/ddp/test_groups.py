"""States of process groups: each sums over its own ranks, or fails on every rank and reports the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import ReductionState, attach, reduction_hook

HALVES = [[0, 1], [2, 3]]


def gradients(model: nn.Module, rank: int, steps: int = 2) -> list[float]:
    """Train on inputs that make each rank's gradient its number plus one, plus ten per step."""
    seen = []
    for step in range(steps):
        model.zero_grad()
        model(torch.full((1, 3), float(rank + 1 + 10 * step))).sum().backward()
        seen.append(next(model.parameters()).grad[0, 0].item())
    return seen


def own_half(rank: Any) -> dist.ProcessGroup:
    return [dist.new_group(half) for half in HALVES][rank.number // 2]


def ddp(group: dist.ProcessGroup | None) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(3, 2, bias=False), process_group=group)


def attached(rank: Any, reducers: list[str] | None, settings: dict[str, Any]) -> list[float]:
    model = ddp(own_half(rank))
    with attach(model, reducers=reducers, **settings):
        return gradients(model, rank.number)


# Cases: one job name for both groups, as operators set it for a whole job; no name; an embedded reducer for each.
@pytest.mark.parametrize("named", ["named", "not named", "embedded"])
def test_each_half_of_the_ranks_averages_on_its_own(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, named: str
) -> None:
    addresses = None if named == "embedded" else reducers(2)
    answers = ranks.run(4, attached, addresses, {"job": job} if named == "named" else {})
    assert answers == [[1.5, 11.5], [1.5, 11.5], [3.5, 13.5], [3.5, 13.5]]


def in_both(rank: Any, reducers: list[str], job: str) -> list[list[float]]:
    """Use a state of the half and one of all ranks in turn, both of one job."""
    half = rank.cleanup.enter_context(ReductionState(reducers, job=job, process_group=own_half(rank)))
    whole = rank.cleanup.enter_context(ReductionState(reducers, job=job))
    sums = []
    for state in (half, whole, half, whole):
        sums.append(rank.wait(state.all_reduce(torch.full((2,), 10.0**rank.number))).tolist())
    return sums


def test_states_of_different_groups_of_one_job_do_not_mix(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    answers = ranks.run(4, in_both, reducers(2), job)
    low, high, whole = [11.0, 11.0], [1100.0, 1100.0], [1111.0, 1111.0]
    assert answers == [[low, whole] * 2, [low, whole] * 2, [high, whole] * 2, [high, whole] * 2]


def with_a_state_of_others(rank: Any, reducers: list[str], which: str) -> tuple[str, str, float]:
    """Give a half's DDP a state for other ranks; return the hook's error, the state's error, and the gradient."""
    half = own_half(rank)
    crossed = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank.number % 2]
    settings: dict[str, Any] = {"of all": {}, "of another group": {"process_group": crossed}}.get(which, {})
    if which == "counted":
        settings = {"rank": rank.number, "world_size": 4, "job": "counted"}
    model = ddp(half)
    state = rank.cleanup.enter_context(ReductionState(reducers, close_timeout_s=1.0, **settings))
    model.register_comm_hook(state, reduction_hook)
    error = rank.error_of(lambda: gradients(model, rank.number))
    return str(error), str(state.error), next(model.parameters()).grad[0, 0].item()


@pytest.mark.parametrize(
    ("which", "theirs"),
    [
        ("of all", ["0-3"] * 4),
        ("of another group", ["0,2", "1,3", "0,2", "1,3"]),
        ("counted", ["0-3"] * 4),
    ],
)
def test_ddp_with_a_state_for_other_ranks_is_an_error_on_all_ranks(
    ranks: Any, reducers: Callable[[int], list[str]], which: str, theirs: list[str]
) -> None:
    answers = ranks.run(4, with_a_state_of_others, reducers(1), which)
    for rank, (raised, kept, gradient) in enumerate(answers):
        ours = "0,1" if rank < 2 else "2,3"
        assert f"averages over ranks {ours}, but this state is for ranks {theirs[rank]}" in raised
        assert "attach(ddp_model)" in kept
        assert gradient == rank + 1, "a gradient was changed"


def counted(rank: Any, reducers: list[str], job: str) -> list[float]:
    half = own_half(rank)
    model = ddp(half)
    settings = {"rank": rank.number % 2, "world_size": 2, "job": job}
    model.register_comm_hook(rank.cleanup.enter_context(ReductionState(reducers, **settings)), reduction_hook)
    return gradients(model, rank.number)


def test_explicitly_numbered_ranks_of_different_groups_of_the_same_name_do_not_mix(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    answers = ranks.run(4, counted, reducers(2), job)
    assert answers == [[1.5, 11.5], [1.5, 11.5], [3.5, 13.5], [3.5, 13.5]]


def refused_at_once(rank: Any, reducers: list[str]) -> list[str]:
    """Return the errors of attach and the constructor for wrong arguments, found without communication."""
    half, other = own_half(rank), dist.new_group([0])
    model = ddp(half)
    state = ReductionState(reducers)
    calls: list[Callable[[], Any]] = [
        lambda: attach(model, state),
        lambda: attach(model, ReductionState(reducers, process_group=half), job="x"),
        lambda: attach(nn.Linear(1, 1)),
        lambda: attach(model, process_group=half),  # type: ignore[call-arg]
        lambda: ReductionState(reducers, process_group=half, world_size=4),
    ]
    if rank.number:
        calls.append(lambda: ReductionState(reducers, process_group=other))
    return [f"{type(error := rank.error_of(call)).__name__}: {error}" for call in calls]


def test_wrong_arguments_are_refused_at_once(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    for rank, texts in enumerate(ranks.run(4, refused_at_once, reducers(1))):
        for text, part in zip(
            texts,
            (
                "but this state is for ranks 0-3",
                "leave out job",
                "a Linear averages no gradients",
                "leave out process_group",
                f"rank {rank % 2} of 2 in process_group, but rank={rank % 2} and world_size=4",
                "not a member of it",
            ),
            strict=False,
        ):
            assert text.startswith("ConfigError: ")
            assert part in text


def two_modules(rank: Any, reducers: list[str]) -> list[list[float]]:
    """Average two modules with a state of a half, the second created later, and refuse a module of all ranks."""
    half = own_half(rank)
    first = ddp(half)
    state = rank.cleanup.enter_context(attach(first, reducers=reducers))
    answers = [gradients(first, rank.number)]
    second = ddp(half)
    second.register_comm_hook(state, reduction_hook)
    answers.append(gradients(second, rank.number))
    third = ddp(None)
    third.register_comm_hook(state, reduction_hook)
    assert "averages over ranks 0-3" in str(rank.error_of(lambda: gradients(third, rank.number)))
    return answers


def test_a_state_averages_several_modules_of_its_ranks_only(
    ranks: Any, reducers: Callable[[int], list[str]]
) -> None:
    answers = ranks.run(4, two_modules, reducers(1))
    assert answers == [[[1.5, 11.5]] * 2] * 2 + [[[3.5, 13.5]] * 2] * 2
