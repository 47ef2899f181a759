"""Sharing of a reducer that the process has started, and the time at which it ends."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from reduction.errors import ReducerUnavailable
from reduction.process import kept_reducer
from reduction.security.tls import TlsFiles

from worker_plugin.discovery import embedded
from worker_plugin.discovery.embedded import EmbeddedReducer, give_back, lend

ONE, TWO, THREE = ("one", ""), ("two", ""), ("one", "0,1")


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[EmbeddedReducer]:
    """The stopped reducers. None of them has a process."""
    stopped: list[EmbeddedReducer] = []
    ports = iter(range(7000, 8000))

    def start(self: EmbeddedReducer) -> Any:
        return SimpleNamespace(returncode=None, stdin=None, stdout=None)

    def stop(self: EmbeddedReducer) -> None:
        assert self._stopping.is_set(), "all of them end at the same time"
        stopped.append(self)

    monkeypatch.setattr(kept_reducer, "hold", lambda hosts: (next(ports), []))
    monkeypatch.setattr(EmbeddedReducer, "_start", start)
    monkeypatch.setattr(EmbeddedReducer, "wait_until_ready", lambda self: None)
    monkeypatch.setattr(EmbeddedReducer, "keep_alive", lambda self: None)
    monkeypatch.setattr(EmbeddedReducer, "stop", stop)
    monkeypatch.setattr(embedded, "_lent", [])
    return stopped


def test_the_last_job_stops_the_reducer(stopped: list[EmbeddedReducer]) -> None:
    first = lend(ONE)
    assert lend(TWO) is lend(THREE) is first
    give_back(ONE, [first])
    give_back(THREE, [first])
    assert stopped == []
    assert lend(ONE) is first
    give_back(TWO, [first])
    give_back(ONE, [first])
    assert stopped == [first]
    assert lend(ONE) is not first


def test_one_job_gets_distinct_reducers_which_the_next_job_shares(
    stopped: list[EmbeddedReducer],
) -> None:
    mine = [lend(ONE), lend(ONE)]
    assert mine[0] is not mine[1]
    theirs = [lend(TWO), lend(TWO)]
    assert theirs == mine
    give_back(ONE, mine)
    assert stopped == []
    give_back(TWO, theirs)
    assert stopped == mine


def test_a_reducer_started_with_other_arguments_is_not_shared() -> None:
    tls = TlsFiles("cert", "key", "ca")
    plain = lend(ONE, "10.0.0.1", "token")
    others = [
        lend(TWO, "10.0.0.2", "token"),
        lend(TWO, "10.0.0.1", "another"),
        lend(TWO, "10.0.0.1", "token", tls),
    ]
    assert len({*others, plain}) == 4
    assert lend(TWO, "10.0.0.1", "token") is plain


def test_a_reducer_that_has_ended_is_not_lent() -> None:
    first: Any = lend(ONE)
    first._process.returncode = -9
    second = lend(TWO)
    assert second is not first
    first._process.returncode = None  # it was restarted
    assert lend(TWO) is first


def test_concurrent_jobs_share_the_reducer_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, go = EmbeddedReducer._start, threading.Event(), threading.Event()

    def slowly(self: EmbeddedReducer) -> Any:
        begun.set()
        assert go.wait(30)
        return start(self)

    monkeypatch.setattr(EmbeddedReducer, "_start", slowly)
    with ThreadPoolExecutor(5) as threads:
        lent = [threads.submit(lend, (str(number), "")) for number in range(5)]
        assert begun.wait(30)
        go.set()
        assert len({one.result() for one in lent}) == 1


def test_a_start_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: EmbeddedReducer) -> Any:
        raise ReducerUnavailable("no")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedReducer, "_start", refuse)
        with pytest.raises(ReducerUnavailable, match="no"):
            lend(ONE)
    assert lend(ONE).users == {ONE}


def test_a_forked_child_has_none_of_its_parents_reducers() -> None:
    mine = lend(ONE)
    with embedded._lending:  # as if another thread were lending one at this moment
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # in case it waits for that thread
            os._exit(0 if lend(TWO) is not mine and mine.users == {ONE} else 1)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert lend(TWO) is mine
