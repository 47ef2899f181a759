"""The Work of a process group's all-reduce: errors are never lost, large tensors are never kept."""

from __future__ import annotations

import datetime
import threading
import weakref

import pytest
import torch
from reduction.errors import CollectiveTimeout, WorkerLost

from worker_plugin.process_group import work as works
from worker_plugin.process_group.completions import completions
from worker_plugin.process_group.work import KEPT, SMALL_BYTES, AllReduceWork
from worker_plugin.tensors.futures import Future, fail


def work_of(*tensors: torch.Tensor) -> tuple[AllReduceWork, list[Future]]:
    futures: list[Future] = [torch.futures.Future() for _ in tensors]
    return AllReduceWork(tensors, futures), futures


def test_it_is_done_when_all_its_tensors_are() -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    work, (first, second) = work_of(*tensors)
    first.set_result(tensors[0])
    assert not work.is_completed()
    assert not work.is_success()
    assert work.exception() is None
    second.set_result(tensors[1])
    assert work.is_completed()
    for _ in range(2):
        assert work.wait() is True
        assert work.is_success()
        work.synchronize()
    assert [one is other for one, other in zip(work.result(), tensors, strict=True)] == [True, True]
    assert work.get_future().wait()[1] is tensors[1]


def test_an_error_is_raised_on_every_wait() -> None:
    tensor = torch.ones(2)
    work, (future,) = work_of(tensor)
    early = work.get_future()
    fail(future, WorkerLost("rank 1 is gone"))
    for _ in range(2):
        with pytest.raises(WorkerLost, match="rank 1 is gone"):
            work.wait()
        assert isinstance(work.exception(), WorkerLost)
        assert work.is_completed()
        assert not work.is_success()
    for one in (early, work.get_future()):
        with pytest.raises(RuntimeError, match="WorkerLost: rank 1 is gone"):
            one.wait()


def is_gone(reference: weakref.ref[torch.Tensor]) -> bool:
    deadline = threading.Event()
    for _ in range(100):  # the thread that completed the future may hold it for a moment
        if reference() is None:
            return True
        deadline.wait(0.05)
    return False


@pytest.mark.parametrize("way", ["wait", "get_future", "is_completed", "nothing"])
@pytest.mark.parametrize("is_dropped_early", [True, False])
def test_no_tensor_outlives_its_future(way: str, is_dropped_early: bool) -> None:
    tensor = torch.ones(SMALL_BYTES // 4 + 1)
    gone = weakref.ref(tensor)
    work, futures = work_of(tensor)
    waiting = work.get_future() if way == "get_future" else None
    if is_dropped_early:
        del work
    futures.pop().set_result(tensor)
    del tensor
    if waiting is not None:
        waiting.wait()
    del waiting
    if not is_dropped_early:
        if way == "wait":
            work.wait()
        elif way == "is_completed":
            assert work.is_completed()
        assert work.result()[0] is gone(), "one that is held holds its tensors"
        del work
    assert is_gone(gone)
    kept = works._kept[-1]  # as seen from C++
    assert kept.wait() is True
    with pytest.raises(RuntimeError, match="a tensor of this all-reduce is gone"):
        kept.result()


def test_only_the_last_works_are_kept() -> None:
    references = []
    for _ in range(KEPT + 10):
        work, _ = work_of()
        references.append(weakref.ref(work))
        del work
    assert len(works._kept) == KEPT
    assert [reference() is None for reference in references[:11]] == [True] * 10 + [False]


def test_a_small_tensor_that_nobody_holds_is_still_there_after_the_wait() -> None:
    """DDP.join waits for its Work and then asks for the tensor. Meanwhile only C++ holds the Work."""
    tensor, large = torch.ones(SMALL_BYTES // 4), torch.ones(SMALL_BYTES)
    work, (first, second) = work_of(tensor, large[:2])
    held = work.result()[1]
    del work
    first.set_result(tensor)
    second.set_result(large)
    del tensor, large, first, second
    kept = works._kept[-1]
    kept.wait()
    assert kept.get_future().wait()[0].sum() == SMALL_BYTES // 4
    gone = weakref.ref(held)
    del held
    assert is_gone(gone), "a small part of a large tensor holds all of it"


def test_it_reports_when_it_is_done() -> None:
    tensors, told = [torch.ones(2), torch.ones(3)], []
    futures: list[Future] = [torch.futures.Future() for _ in tensors]
    work = AllReduceWork(tensors, futures, told.append)
    futures[1].set_result(tensors[1])
    assert told == []
    fail(futures[0], WorkerLost("rank 1 is gone"))
    assert told[0] is work
    assert isinstance(work.exception(), WorkerLost)


def test_a_timeout_leaves_it_as_it_is() -> None:
    tensor = torch.ones(2)
    work, (future,) = work_of(tensor)
    with pytest.raises(CollectiveTimeout, match=r"no result after 0\.01 s"):
        work.wait(datetime.timedelta(seconds=0.01))
    future.set_result(tensor)
    assert work.wait(datetime.timedelta(seconds=10)) is True
    assert work.wait(datetime.timedelta(0)) is True


def test_a_continuation_that_no_thread_can_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    tensor = torch.ones(2)
    work, (future,) = work_of(tensor)
    monkeypatch.setattr(completions, "submit", refuse)
    waiting = work.get_future()
    future.set_result(tensor)
    with pytest.raises(RuntimeError, match=r"ResourceExhausted.*ulimit -u"):
        waiting.wait()
