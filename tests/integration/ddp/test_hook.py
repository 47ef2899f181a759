"""The hook under DDP: its possible callers, and what all ranks get when it fails on one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ResourceExhausted
from torch import nn
from torch.autograd.profiler import record_function
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import ReductionState, attach, reduction_hook
from worker_plugin import client as client_module
from worker_plugin.state import PROFILED_AS


def model() -> nn.Linear:
    linear = nn.Linear(3, 2, bias=False)
    nn.init.ones_(linear.weight)
    return linear


def backward(module: nn.Module, value: float) -> None:
    module.zero_grad()
    module(torch.full((1, 3), value)).sum().backward()


# ---- callers of the hook ----


def with_the_python_reducer(rank: Any, reducers: list[str], compiled: bool, job: str) -> list[str]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=compiled):
        ddp = DistributedDataParallel(model())
        refused = rank.error_of(lambda: attach(ddp))
        state = rank.state(reducers, job, close_timeout_s=1.0)
        ddp.register_comm_hook(state, reduction_hook)
        step = torch.compile(ddp, backend="eager") if compiled else ddp
        errors = [rank.error_of(lambda: backward(step, rank.number + 1.0)) for _ in range(2)]
        return [f"{type(error).__name__}: {error}" for error in (refused, *errors, state.error)]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_python_reducer_is_refused(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, compiled: bool
) -> None:
    for texts in ranks.run(2, with_the_python_reducer, reducers(1), compiled, job):
        for text in texts:
            assert text.startswith("ConfigError: DDP's Python reducer ignores the return value"), text


def with_fsdp(rank: Any, reducers: list[str], strategy: str, job: str) -> list[str]:
    state = rank.state(reducers, job, close_timeout_s=1.0)
    sharded = FullyShardedDataParallel(
        model(), sharding_strategy=ShardingStrategy[strategy], device_id=torch.device("cpu")
    )
    sharded.register_comm_hook(state, reduction_hook)
    error = rank.error_of(lambda: backward(sharded, rank.number + 1.0))
    return [f"{type(one).__name__}: {one}" for one in (error, state.error)]


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.filterwarnings("ignore")
def test_fsdp1_is_refused(ranks: Any, reducers: Callable[[int], list[str]], job: str, strategy: str) -> None:
    for texts in ranks.run(2, with_fsdp, reducers(1), strategy, job):
        for text in texts:
            assert text.startswith("ConfigError: the hook averages the buckets of DistributedDataParallel"), (
                text
            )


def with_replicate(rank: Any, reducers: list[str], job: str) -> float:
    from torch.distributed._composable.replicate import replicate

    module = replicate(model())
    module.register_comm_hook(rank.state(reducers, job), reduction_hook)
    backward(module, rank.number + 1.0)
    return module.weight.grad[0, 0].item()


def test_modules_from_replicate_are_averaged(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    assert ranks.run(2, with_replicate, reducers(1), job) == [1.5, 1.5]


def with_uneven_inputs(rank: Any, reducers: list[str], job: str) -> list[float]:
    ddp = DistributedDataParallel(model())
    attach(ddp, rank.state(reducers, job))
    seen = []
    with ddp.join():
        for step in range(1 + 2 * rank.number):
            backward(ddp, 4.0 + step)
            seen.append(ddp.module.weight.grad[0, 0].item())
    return seen


def test_a_rank_without_inputs_averages_zeros(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    assert ranks.run(2, with_uneven_inputs, reducers(1), job) == [[4.0], [4.0, 2.5, 3.0]]


# ---- an error in the hook on one rank ----


def out_of_memory(*_: object) -> None:
    raise MemoryError("cannot have 7 GiB")


def slips(rank: Any, reducers: list[str], job: str, at: int, cause: str) -> list[tuple[str, str]]:
    """Train while the hook fails on rank 1 in step `at`; both ranks catch errors and continue with the next step."""
    embedding = nn.Embedding(5, 2, sparse=cause == "sparse" and rank.number == 1)
    ddp = DistributedDataParallel(model() if cause == "memory" else embedding)
    state = attach(ddp, rank.state(reducers, job))
    real = client_module.encoding_of
    seen = []
    for step in range(4):
        ddp.zero_grad()
        if cause == "memory" and rank.number == 1 and step == at:
            client_module.encoding_of = out_of_memory
        try:
            inputs = torch.full((1, 3), 10.0 * step + rank.number) if cause == "memory" else torch.arange(5)
            ddp(inputs).sum().backward()
            seen.append(("mean", str(next(ddp.parameters()).grad[0, 0].item())))
        except RuntimeError as error:
            seen.append((f"{type(state.error).__name__}: {state.error}", str(error)))
        finally:
            client_module.encoding_of = real
    return seen


def raised_through_ddp(rank: Any, reducers: list[str], job: str) -> tuple[str, str]:
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.state(reducers, job))
    if rank.number == 1:
        state.fail(MemoryError("too much"))
    return str(rank.error_of(lambda: backward(ddp, 1.0))), f"{type(state.error).__name__}: {state.error}"


def test_an_error_through_ddp_ends_with_our_message_and_no_frames(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    for text, ours in ranks.run(2, raised_through_ddp, reducers(1), job):
        assert text.endswith(f"RuntimeError: {ours}"), text


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_in_the_hook_fails_all_ranks_and_persists(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, at: int
) -> None:
    answers = ranks.run(2, slips, reducers(2), job, at, "memory")
    for rank, steps in enumerate(answers):
        assert steps[:at] == [("mean", str(10.0 * step + 0.5)) for step in range(at)]
        for kept, raised in steps[at:]:
            assert "MemoryError: cannot have 7 GiB" in raised
            assert kept.startswith("ResourceExhausted: " + ("rank 1 (" if rank == 0 else "MemoryError"))


def test_a_refused_bucket_on_one_rank_fails_all_ranks(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    answers = ranks.run(2, slips, reducers(1), job, 0, "sparse")
    for rank, steps in enumerate(answers):
        for kept, raised in steps:
            assert "make the nn.Embedding or nn.EmbeddingBag with sparse=False" in raised
            assert kept.startswith("ConfigError: " if rank else "WorkerFailed: rank 1 (")


def fails_before_the_others_come(rank: Any, reducers: list[str], job: str) -> str:
    """Fail on rank 1 in its first step, and close it, before rank 0 starts."""
    state = rank.state(reducers, job)
    if rank.number == 1:
        error = state.fail(MemoryError("too much"))
        rank.tell("failed")
        return type(error).__name__
    rank.hear()
    error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
    assert isinstance(error, ResourceExhausted), error
    return str(error)


def test_ranks_that_come_later_get_the_error_too(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    call = ranks.begin(2, fails_before_the_others_come, reducers(2), job)
    assert call.hear(1) == "failed"
    call.tell(0, "go on")
    told, own = call.answers()
    assert own == "ResourceExhausted"
    assert told.startswith("rank 1 (")
    assert "MemoryError: too much" in told


def goes_on_after_an_error(rank: Any, reducers: list[str] | None, job: str | None) -> list[str]:
    """Use the same DDP object through three lives of one state."""
    ddp = DistributedDataParallel(model())
    state = attach(ddp, rank.cleanup.enter_context(ReductionState(reducers, job=job)))
    real, seen = client_module.encoding_of, []
    for step in range(7):
        dist.barrier()  # after an error, the ranks may be one collective apart
        if rank.number == 1 and step in (2, 4):
            client_module.encoding_of = out_of_memory
        try:
            backward(ddp, 10.0 * step + rank.number)
            seen.append(str(ddp.module.weight.grad[0, 0].item()))
        except RuntimeError:
            seen.append(type(state.error).__name__)
            state.restart()
        finally:
            client_module.encoding_of = real
    return seen


@pytest.mark.parametrize("named", [True, False, None], ids=["named", "not named", "embedded"])
def test_the_same_ddp_object_continues_after_a_restart(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, named: bool | None
) -> None:
    addresses = None if named is None else reducers(2)
    answers = ranks.run(2, goes_on_after_an_error, addresses, job if named else None)
    means = ["0.5", "10.5", "ResourceExhausted", "30.5", "ResourceExhausted", "50.5", "60.5"]
    assert answers == [means, means]


def restarts_without_need(rank: Any, reducers: list[str], job: str) -> None:
    state = rank.state(reducers, job)
    state.restart()  # before anything was opened
    rank.round(state)
    state.restart()
    rank.round(state, step=1)
    state.close()
    state.restart()
    rank.round(state, step=2)


def test_a_restart_without_an_error_also_starts_a_new_life(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    ranks.run(3, restarts_without_need, reducers(2), job)


def unexpected_in_all_reduce(rank: Any, reducers: list[str], job: str) -> list[str]:
    state = rank.state(reducers, job)
    rank.round(state)
    real = client_module.encoding_of
    if rank.number == 1:
        client_module.encoding_of = out_of_memory
    try:
        first = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
    finally:
        client_module.encoding_of = real
    second = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
    return [type(error).__name__ for error in (first, second)]


def test_an_unexpected_error_in_all_reduce_fails_all_ranks(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    answers = ranks.run(2, unexpected_in_all_reduce, reducers(1), job)
    assert answers == [["ResourceExhausted"] * 2, ["ResourceExhausted"] * 2]


@pytest.mark.parametrize("wrong", [torch.ones(4, 4).t()[:, ::2], "text", None])
def test_a_wrong_argument_to_all_reduce_does_not_fail_the_state(wrong: Any) -> None:
    state = ReductionState("127.0.0.1:1", job="argument", rank=0, world_size=2)
    with pytest.raises(ConfigError):
        state.all_reduce(wrong)
    assert state.error is None


@pytest.mark.parametrize("state", [None, ["127.0.0.1:50051"]])
def test_the_hook_requires_a_state(state: Any) -> None:
    with pytest.raises(ConfigError, match=f"a {type(state).__name__}: pass a ReductionState"):
        reduction_hook(state, cast("Any", None))


def attached_twice(rank: Any, reducers: list[str], job: str) -> str:
    with rank.state(reducers, job) as state:
        ddp = DistributedDataParallel(model())
        assert attach(ddp, state) is attach(ddp, state)
        return str(rank.error_of(lambda: attach(ddp, reducers=reducers)))


def test_a_second_attach_is_refused(ranks: Any, reducers: Callable[[int], list[str]], job: str) -> None:
    [said] = ranks.run(1, attached_twice, reducers(1), job)
    assert "averages through the reducers already: attach it once, with all settings" in said


# ---- torch.profiler ----

LATE_S = 0.2


def profiled(rank: Any, reducers: list[str], job: str) -> list[float]:
    with rank.state(reducers, job) as state:
        ddp = DistributedDataParallel(model())
        ddp.register_comm_hook(state, reduction_hook)
        backward(ddp, 1.0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            backward(ddp, 2.0)
            if rank.number:
                rank.hear()
                time.sleep(LATE_S)
            future = state.all_reduce(torch.ones(5))
            rank.tell("issued")
            rank.wait(future)
    return [event.cpu_time_total / 1e6 for event in profile.events() if event.name == PROFILED_AS]


def test_the_profiler_shows_a_collective_from_its_issue_to_its_result(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    call = ranks.begin(2, profiled, reducers(1), job)
    assert call.hear(0) == "issued"
    call.tell(1, "issue yours")
    seconds = call.answers()
    assert [len(each) for each in seconds] == [2, 2]
    assert seconds[0][1] >= LATE_S


def with_a_late_profiler(rank: Any, reducers: list[str], job: str) -> list[bool]:
    issued, ended = [], torch.futures.Future()

    def end_later(_: object, future: torch.futures.Future) -> torch.futures.Future:
        issued.append(future)
        return ended

    with rank.state(reducers, job) as state, torch.profiler.profile():
        with mock.patch.object(record_function, "_call_end_callbacks_on_future", end_later):
            future = state.all_reduce(torch.ones(5))
        rank.wait(issued[0])
        early = future.done()
        ended.set_result(None)
        return [early, torch.equal(rank.wait(future), torch.ones(5))]


def test_a_caller_has_the_result_only_after_the_profiler(
    ranks: Any, reducers: Callable[[int], list[str]], job: str
) -> None:
    """If the caller could stop the profiler earlier, torch would crash at the end of the event."""
    assert ranks.begin(1, with_a_late_profiler, reducers(1), job).answers() == [[False, True]]
