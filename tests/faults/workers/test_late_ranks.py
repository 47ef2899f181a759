"""Late ranks, whatever the reason: they are waited for and named, at the first collective as at any other."""

from __future__ import annotations

import ctypes
import logging
import time

import pytest
import torch
from reduction.errors import WorkersMissing
from support.planes import ANY_PLANE

from worker_plugin.core.membership import judge

#: Longer than reducers are waited for in these tests.
LATE_S = 4.0


class Texts(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def logged(rank) -> list[str]:
    handler = Texts()
    logger = logging.getLogger("worker_plugin")
    logger.addHandler(handler)
    rank.cleanup.callback(logger.removeHandler, handler)
    return handler.texts


def one_is_late(rank, reducers, job, late):
    """Rank `late` reaches the first collective so late that reducers would have been given up."""
    texts = logged(rank)
    with rank.state(reducers, job, join_timeout_s=LATE_S / 4, stall_warn_s=LATE_S / 4) as state:
        if rank.number == late:
            rank.hear()
        else:
            rank.tell("waiting")
        rank.round(state)
        rank.round(state, step=1)
    return texts


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("has_store", [True, False])
def test_a_rank_that_is_late_for_the_first_collective_is_waited_for(ranks, reducers, job, late, has_store):
    call = ranks.begin(3, one_is_late, reducers(2), job, late, group=has_store)
    for rank in {0, 1, 2} - {late}:
        assert call.hear(rank) == "waiting"
    time.sleep(LATE_S)  # the subject of the test
    call.tell(late, "come")
    answers = call.answers()
    # Rank 0 knows which rank is missing. All ranks can see that rank 0 is.
    who = f"waiting for rank {late} to "
    witnesses = [0] if late else [1, 2]
    for rank in witnesses:
        assert any(text.partition(": ")[2].startswith(who) or text.startswith(who) for text in answers[rank])
    assert not any("waiting for" in text for text in answers[late])


def one_never_comes(rank, reducers, job):
    with rank.state(reducers, job, timeout_s=LATE_S, close_timeout_s=0.5) as state:
        if rank.number == 2:
            rank.hear()
            return None
        begin = time.monotonic()
        error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
        rank.tell("given up")
        return type(error), str(error), time.monotonic() - begin


@pytest.mark.parametrize("has_store", [True, False])
def test_a_rank_that_never_joins_is_named_in_an_error_on_all_others(ranks, reducers, job, has_store):
    call = ranks.begin(3, one_never_comes, reducers(2), job, group=has_store)
    assert [call.hear(rank) for rank in (0, 1)] == ["given up"] * 2
    call.tell(2, "too late")
    for kind, text, seconds in call.answers()[:2]:
        assert kind is WorkersMissing
        assert f"rank 2 did not join within {LATE_S:g} s" in text
        assert seconds >= LATE_S - 0.1


def busy_while_the_reducer_restarts(rank, reducers, job):
    """Let rank 1 hold the GIL longer than it takes for a silent host to count as dead."""
    judge.ABSENT_S = 1.0
    with rank.state(reducers, job) as state:
        rank.round(state)
        rank.tell("ready")
        rank.hear()
        if rank.number == 1:
            ctypes.PyDLL(None).sleep(5)
        rank.round(state, step=1)
        rank.round(state, step=2)
        assert state.error is None


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("others", [1, 2])
def test_the_only_reducer_restarts_while_a_rank_is_busy(serve, fresh_ranks, free_port, job, others):
    ranks, reducer = fresh_ranks(), serve(bind=f"127.0.0.1:{free_port()}")
    call = ranks.begin(1 + others, busy_while_the_reducer_restarts, [reducer.address], job)
    for rank in range(1 + others):
        assert call.hear(rank) == "ready"
    for rank in range(1 + others):
        call.tell(rank, "go on")
    time.sleep(0.5)  # the busy rank is busy by now
    reducer.kill()
    serve(bind=reducer.address)
    call.answers()
