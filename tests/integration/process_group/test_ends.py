"""A killed rank is an error for every rank that waits, in any way, and so is an abort."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from reduction.errors import ClosedError, CollectiveTimeout, ReductionError
from support.processes.ranks import Died

from worker_plugin import ReductionState
from worker_plugin.process_group import ReductionOptions

#: Seconds within which the death of a rank is detected and is an error on all ranks.
SOON_S = 10.0
#: Longer than close_timeout_s, in seconds.
WAITING_S = 8.0
WAYS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "at once": lambda tensor, group: dist.all_reduce(tensor, group=group),
    "later": lambda tensor, group: dist.all_reduce(tensor, group=group, async_op=True).wait(),
    "a future": lambda tensor, group: dist.all_reduce(tensor, group=group, async_op=True).get_future().wait(),
    "a continuation": lambda tensor, group: (
        dist.all_reduce(tensor, group=group, async_op=True)
        .get_future()
        .then(lambda done: done.value())
        .wait()
    ),
    "functional": lambda tensor, group: functional.all_reduce(tensor, "sum", group).wait(),
    "the group's method": lambda tensor, group: group.allreduce([tensor]).wait(),
    "coalesced": lambda tensor, group: group.allreduce_coalesced([tensor, tensor.clone()]).wait(),
}


def wait_for_the_dead(rank: Any, reducers: list[str]) -> dict[str, tuple[str, float]]:
    """Wait in each way, each in its own group, for a rank that is killed after it has joined."""
    options = ReductionOptions(reducers=reducers)
    groups = {way: dist.new_group(backend="reduction", pg_options=options) for way in WAYS}
    for group in groups.values():
        dist.all_reduce(torch.ones(3), group=group)
    if rank.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    outcomes = {}
    for way, group in groups.items():
        started_at = time.monotonic()
        error = rank.error_of(lambda way=way, group=group: WAYS[way](torch.ones(1000), group))
        outcomes[way] = f"{type(error).__name__}: {error}", time.monotonic() - started_at
        later = rank.error_of(lambda group=group: dist.all_reduce(torch.ones(3), group=group))
        assert isinstance(later, ReductionError), later
        dist.destroy_process_group(group)
    return outcomes


def test_waiting_for_a_dead_rank_raises(fresh_ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    *survivors, dead = fresh_ranks().run(3, wait_for_the_dead, reducers(2))
    assert isinstance(dead, Died)
    for outcomes in survivors:
        for way, (error, took_s) in outcomes.items():
            assert "WorkerLost" in error, (way, error)
            assert "rank 2" in error, (way, error)
            assert took_s < SOON_S, (way, took_s)


def aborted(rank: Any, reducers: list[str], how: str) -> tuple[str, float, bool]:
    group: Any = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    dist.all_reduce(torch.ones(3), group=group)
    if how == "before they meet":
        group = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    tensor, work = torch.ones(1000), None
    if rank.number != 2:  # rank 2 does not take part
        work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.barrier()
    started_at = time.monotonic()
    if rank.number == 0 or how == "before they meet":
        group.abort()
    took_s = time.monotonic() - started_at
    assert took_s < 1.0, took_s
    dist.barrier()
    error = rank.error_of(work.wait) if work else None
    dist.barrier()  # rank 2 issues only after the others know of the abort; earlier it would complete the sum
    if work is None:
        error = rank.error_of(lambda: dist.all_reduce(tensor, group=group))
    took_s = time.monotonic() - started_at
    for thread in threading.enumerate() if how == "before they meet" else ():
        if thread.name == "reduction-discovery":  # it informs newcomers for a while, and then gives up
            thread.join(WAITING_S)
            assert not thread.is_alive()
    return f"{type(error).__name__}: {error}", took_s, torch.equal(tensor, torch.ones(1000))


def test_an_abort_fails_all_ranks_at_once(ranks: Any, reducers: Callable[[int], list[str]]) -> None:
    first, second, third = ranks.run(3, aborted, reducers(2), "in the middle")
    assert first[0] == "ClosedError: the state was aborted; make a new one"
    for error, took_s, is_untouched in (second, third):
        assert error.startswith("WorkerFailed: rank 0")
        assert "aborted" in error
        assert took_s < SOON_S
        assert is_untouched


def test_an_abort_does_not_wait_for_ranks_that_have_not_joined(
    ranks: Any, reducers: Callable[[int], list[str]]
) -> None:
    for error, took_s, is_untouched in ranks.run(3, aborted, reducers(2), "before they meet"):
        assert error.startswith("ClosedError")
        assert took_s < 1.0
        assert is_untouched


def late(rank: Any, reducers: list[str]) -> str:
    group = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    dist.all_reduce(torch.ones(1), group=group)
    tensor, error = torch.ones(10), None
    if rank.number == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        error = rank.error_of(lambda: work.wait(datetime.timedelta(seconds=0.3)))
        assert isinstance(error, CollectiveTimeout), error
    dist.barrier()
    if rank.number == 0:
        work.wait(datetime.timedelta(seconds=30))
    else:
        dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full((10,), 2.0))
    dist.destroy_process_group(group)
    return str(error)


def test_a_timeout_of_wait_does_not_end_the_collective(
    ranks: Any, reducers: Callable[[int], list[str]]
) -> None:
    text, _ = ranks.run(2, late, reducers(1))
    assert text == "a collective has no result after 0.3 s"


def by_a_store(rank: Any, reducers: list[str], path: str, job: str) -> None:
    """Meet through a store, without any process group."""
    store = dist.FileStore(path, rank.world_size)
    settings = {"rank": rank.number, "world_size": rank.world_size}
    for number in range(2):  # each of two states has its own store
        own = dist.PrefixStore(str(number), store)
        with ReductionState(reducers or None, store=own, **settings) as state:
            rank.round(state)
            with pytest.raises(Exception, match="with a store cannot be pickled"):
                state.__getstate__()
    wrong = rank.error_of(lambda: ReductionState(store=store))
    assert "rank is None and world_size is None: pass both" in str(wrong)
    wrong = rank.error_of(lambda: ReductionState(store="a store"))  # type: ignore[arg-type]
    assert "pass a store of torch.distributed" in str(wrong)
    state = ReductionState(reducers or None, store=dist.PrefixStore("aborted", store), **settings)
    state.abort()
    state.abort()
    assert isinstance(rank.error_of(lambda: state.all_reduce(torch.ones(1))), ClosedError)


@pytest.mark.parametrize("which", ["reducers", "embedded"])
def test_ranks_may_meet_through_a_store_of_their_own(
    ranks: Any, reducers: Callable[[int], list[str]], job: str, tmp_path: Any, which: str
) -> None:
    addresses = reducers(2) if which == "reducers" else []
    ranks.run(2, by_a_store, addresses, str(tmp_path / "store"), job, group=False)
