"""Threads that complete futures: one for each running job, few when idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from worker_plugin.process_group.completions import IDLE_MAX, Completions


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def running() -> int:
    return sum(thread.name == "reduction-complete" for thread in threading.enumerate())


def test_each_job_has_a_thread_while_it_runs() -> None:
    completions, before = Completions(), running()
    go, started = threading.Event(), threading.Semaphore(0)

    def job() -> None:
        started.release()
        go.wait(10)

    for _ in range(40):
        completions.submit(job)
    assert all(started.acquire(timeout=10) for _ in range(40))  # all concurrently
    go.set()
    until(lambda: running() - before <= IDLE_MAX)
    # Idle ones take the next jobs.
    names: list[str] = []
    for _ in range(20):
        done = threading.Event()
        completions.submit(lambda done=done: (names.append(str(threading.get_ident())), done.set()))  # type: ignore[misc]
        assert done.wait(10)
    assert len(set(names)) <= IDLE_MAX
    completions.stop(10)
    until(lambda: running() == before)


def test_jobs_also_run_after_a_stop() -> None:
    completions = Completions()
    for _ in range(3):
        done = threading.Event()
        completions.submit(done.set)
        assert done.wait(10)
        completions.stop(10)


def test_a_job_may_wait_for_the_next_one() -> None:
    completions, first, second = Completions(), threading.Event(), threading.Event()
    completions.submit(lambda: (completions.submit(second.set), second.wait(10), first.set()))  # type: ignore[arg-type, return-value]
    assert first.wait(10)
    completions.stop(10)


def test_without_another_thread_submit_raises_and_later_jobs_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    completions, done = Completions(), threading.Event()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            completions.submit(done.set)
    completions.submit(done.set)
    assert done.wait(10)
    completions.stop(10)
