"""Failures in hierarchical mode: every rank of every node is notified, with the rank number in the whole job."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time

import pytest
import torch
from faults.lateness import PROMISED_S, Lateness
from reduction.errors import CollectiveMismatch
from support.expected.hierarchical import of_nodes
from support.planes import ANY_PLANE
from support.processes.ranks import Died
from torch.utils.data import DataLoader, TensorDataset

HOST = socket.gethostname()
#: Descriptors that a process keeps open once it has had a state: gRPC's, the loop's, and its life port.
KEPT_DESCRIPTORS = 9


# ---- in the ranks ----


def check(rank, tensor, size, step):
    others = [rank.values(other, tuple(tensor.shape), step=step) for other in range(rank.world_size)]
    assert torch.equal(tensor, of_nodes(others, size)), f"wrong sum in step {step}"


def rounds(rank, state, size, count=3, numel=10_001):
    for step in range(count):
        tensor = rank.values(rank.number, (numel,), step=step)
        rank.wait(state.all_reduce(tensor))
        check(rank, tensor, size, step)


def outcome(rank, state, act, tensor):
    """Return the error of `act` (type, text and time); the tensor is not touched afterwards."""
    error = rank.error_of(act)
    at, before = time.monotonic(), tensor.clone()
    assert state.error is error or type(error).__name__ in ("ClosedError", "NoneType"), (state.error, error)
    again = rank.error_of(lambda: state.all_reduce(torch.ones(3)))
    assert type(again) is type(error)
    state.close()
    assert torch.equal(before, tensor), "written after the error"
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("reduction-")]
    return type(error).__name__, str(error), at, sorted(set(ours) - {"reduction-io"})


def wait_for(rank, reducers, job, size, victim):
    """The victim stops taking part after some rounds, and waits to be struck; the others wait for it."""
    with rank.state(reducers, job, local_group=size) as state:
        rounds(rank, state, size)
        rank.tell(os.getpid())
        if rank.number == victim:
            signal.pause()
        tensor = torch.ones(10_000)
        future = state.all_reduce(tensor)
        rank.tell("waiting")
        with Lateness() as lateness:
            kind, text, at, threads = outcome(rank, state, lambda: rank.wait(future), tensor)
        return kind, text, at - lateness.worst_s, threads


def issue(rank, reducers, job, size, numels, settings):
    """Issue a collective of this rank's own size, if it has one; return the outcome."""
    with rank.state(reducers, job, local_group=size, **settings) as state:
        rounds(rank, state, size)
        numel = numels[rank.number]
        if numel is None:
            state.close()
            rank.tell("closed")
            return "closed", "", time.monotonic(), []
        if None in numels:
            assert rank.hear() == "go on"
        # The others' error may arrive before our collective, and then issuing it raises.
        tensor = torch.ones(numel)
        return outcome(rank, state, lambda: rank.wait(state.all_reduce(tensor)), tensor)


def close_on_error(rank, reducers, job, size, victim):
    """The victim's rail fails, and it closes as soon as it knows, before its node does."""
    with rank.state(reducers, job, local_group=size) as state:
        rounds(rank, state, size)
        rank.tell("there")
        if rank.number == victim:
            rank.hear()
            state._communicator._client.abandon(CollectiveMismatch("made up"))
            while state.error is None:
                time.sleep(0)
            state.close()
            return None
        tensor = torch.ones(1000)
        return outcome(rank, state, lambda: rank.wait(state.all_reduce(tensor)), tensor)


def abort(rank, reducers, job, size, victim):
    """The victim aborts; the others wait for it."""
    with rank.state(reducers, job, local_group=size) as state:
        rounds(rank, state, size)
        rank.tell("there")  # an abort does not wait for ranks that lack a sum
        if rank.number == victim:
            rank.hear()
            state.abort()
            return None
        tensor = torch.ones(1000)
        return outcome(rank, state, lambda: rank.wait(state.all_reduce(tensor)), tensor)


def slow(rank, reducers, job, size, victim):
    """The victim is about to be stopped; the others are told when."""
    settings = {"stall_warn_s": 0.5, "timeout_s": 3.0}
    with rank.state(reducers, job, local_group=size, **settings) as state:
        rounds(rank, state, size)
        rank.tell("there")
        rank.hear()
        tensor = torch.ones(1000)
        return outcome(rank, state, lambda: rank.wait(state.all_reduce(tensor)), tensor)


def with_children(rank, reducers, job, size, victim):
    """Like `wait_for`, with processes forked from the victim that keep its connections open."""
    with rank.state(reducers, job, local_group=size) as state:
        rounds(rank, state, size)
        if rank.number == victim:
            loader = DataLoader(
                TensorDataset(torch.arange(1000.0)), num_workers=2, multiprocessing_context="fork"
            )
            batches = iter(loader)
            next(batches)
            rank.tell([child.pid for child in multiprocessing.active_children()])
            signal.pause()
        tensor = torch.ones(10_000)
        future = state.all_reduce(tensor)
        rank.tell("waiting")
        with Lateness() as lateness:
            error = rank.error_of(lambda: rank.wait(future))
            at = time.monotonic()
        return type(error).__name__, str(error), at - lateness.worst_s


def sums_while_struck(rank, reducers, job, size, steps):
    """Check sums bit by bit while the test kills a reducer."""
    with rank.state(reducers, job, local_group=size) as state:
        for step in range(steps):
            if step == steps // 2 and rank.number == 0:
                rank.tell("now")
            tensors = [rank.values(rank.number, (50_001 + i,), step=step) for i in range(3)]
            for future, tensor in [(state.all_reduce(tensor), tensor) for tensor in tensors]:
                rank.wait(future)
                check(rank, tensor, size, step)
        assert state.error is None
        return [tensor.sum().item() for tensor in tensors]


def train_and_leave(rank, reducers, job, size):
    """Close immediately after the last sum: no rank may lack its part of it, and nothing may be left."""
    before = len(os.listdir("/proc/self/fd"))
    for life in range(6):
        with rank.state(reducers, f"{job}-{life}", local_group=size) as state:
            if rank.number % 2:
                time.sleep(0.05)
            rounds(rank, state, size, 2, numel=300_001)
            assert state.error is None
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("reduction-")]
        assert ours == ["reduction-io"]
        deadline = time.monotonic() + 10.0
        # gRPC closes its own descriptors a moment later.
        while len(os.listdir("/proc/self/fd")) > before + KEPT_DESCRIPTORS:
            assert time.monotonic() < deadline, os.listdir("/proc/self/fd")
            time.sleep(0.01)


# ---- tests ----


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_is_reported_to_all_others_in_time(fresh_ranks, reducers, job, victim):
    doomed = fresh_ranks()
    call = doomed.begin(4, wait_for, reducers(2), job, 2, victim)
    pids = [call.hear(rank) for rank in range(4)]
    for rank in {0, 1, 2, 3} - {victim}:
        assert call.hear(rank) == "waiting"
    doomed.processes[victim].log.spare()
    killed_at = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    answers = call.answers()
    assert isinstance(answers.pop(victim), Died)
    for kind, text, at, threads in answers:
        assert (kind, threads) == ("WorkerLost", [])
        assert f"rank {victim} ({HOST}" in text or f"global rank {victim}" in text, text
        assert at - killed_at < PROMISED_S


def test_forked_children_of_a_dead_rank_do_not_hide_its_death(fresh_ranks, reducers, job):
    doomed = fresh_ranks()
    call = doomed.begin(4, with_children, reducers(1), job, 2, 1)
    children = call.hear(1)
    try:
        for rank in (0, 2, 3):
            assert call.hear(rank) == "waiting"
        doomed.processes[1].log.spare()
        killed_at = time.monotonic()
        os.kill(doomed.processes[1].process.pid, signal.SIGKILL)
        answers = call.answers()
        del answers[1]
        assert f"rank 1 ({HOST}) is gone: its process has ended" in answers[0][1]
        for kind, text, at in answers:
            assert kind == "WorkerLost"
            assert f"rank 1 ({HOST}" in text or "global rank 1)" in text, text
            assert at - killed_at < PROMISED_S
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("numels", "guilty"),
    [
        ((5, 6, 5, 5), [(f"rank 1 ({HOST})", f"rank 0 ({HOST})")]),  # in a node
        ((5, 5, 6, 6), [("global rank 0)", "global rank 2)"), ("global rank 1)", "global rank 3)")]),
    ],
)
def test_disagreement_is_reported_to_all_ranks(ranks, reducers, job, numels, guilty):
    for kind, text, _, threads in ranks.run(4, issue, reducers(2), job, 2, numels, {}):
        assert (kind, threads) == ("CollectiveMismatch", [])
        assert any(all(name in text for name in names) for names in guilty), text


@pytest.mark.parametrize("leaver", [0, 1, 3])
def test_a_rank_that_closed_early_is_named(ranks, reducers, job, leaver):
    numels = [None if rank == leaver else 1000 for rank in range(4)]
    call = ranks.begin(4, issue, reducers(2), job, 2, numels, {})
    assert call.hear(leaver) == "closed"
    for rank in {0, 1, 2, 3} - {leaver}:
        call.tell(rank, "go on")
    answers = call.answers()
    del answers[leaver]
    for kind, text, _, threads in answers:
        assert (kind, threads) == ("PeerLeft", [])
        assert f"rank {leaver} (" in text or f"global rank {leaver}" in text, text


def test_a_rank_that_closes_on_an_error_reports_it(ranks, reducers, job):
    call = ranks.begin(4, close_on_error, reducers(2), job, 2, 2)
    for rank in range(4):
        call.hear(rank)
    call.tell(2, "go on")
    for answer in call.answers():
        assert answer is None or (answer[0], "made up" in answer[1]) == ("CollectiveMismatch", True)


def test_an_abort_is_reported_as_an_abort(ranks, reducers, job):
    call = ranks.begin(4, abort, reducers(2), job, 2, 2)
    for rank in range(4):
        call.hear(rank)
    call.tell(2, "go on")
    for answer in call.answers():
        assert answer is None or (answer[0], "aborted" in answer[1]) == ("WorkerFailed", True), answer


@pytest.mark.full
def test_a_stopped_rank_is_named_by_its_neighbours(fresh_ranks, reducers, job, stopped, until):
    doomed = fresh_ranks()
    call = doomed.begin(4, slow, reducers(2), job, 2, 1)
    for rank in range(4):
        call.hear(rank)
    stopped(doomed.processes[1].process.pid)
    for rank in (0, 2, 3):
        call.tell(rank, "go on")
    call.wait_for(0, 2, 3)
    log = doomed.processes[0].log.text
    assert f": rank 1 ({HOST}) is late by " in log
    kind, text, _, _ = call._answers[0][1]
    assert kind == "CollectiveTimeout"
    assert f"rank 1 ({HOST}) is late by " in text
    for rank in (2, 3):
        assert call._answers[rank][1][0] == "CollectiveTimeout"
    doomed.kill()


def test_a_killed_reducer_changes_no_bit(ranks, reducers, serve, job):
    calm = ranks.run(4, sums_while_struck, reducers(2), f"{job}-calm", 2, 40)
    doomed = serve()
    call = ranks.begin(4, sums_while_struck, [*reducers(2), doomed.address], f"{job}-struck", 2, 40)
    assert call.hear(0) == "now"
    doomed.kill()
    assert call.answers() == calm


def test_closing_right_after_the_last_sum(fresh_ranks, reducers, job):
    fresh_ranks().run(4, train_and_leave, reducers(2), job, 2)
