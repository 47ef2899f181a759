"""Processes that are stopped, temporarily or permanently: they send nothing, and their sockets stay open."""

from __future__ import annotations

import os
import re
import signal
import socket
import time

import pytest
from reduction.errors import CollectiveTimeout
from support.processes.children import state_of
from support.processes.reducers import status_of
from support.training.checked import train_until_told

#: Longer than a worker waits for a reducer's answer to a ping; no rank may be considered lost by then.
STOPPED_S = 8.0
#: Long tests run over TCP by default: stopped processes are noticed on the gRPC call, which both planes have.
TCP_OR_FULL = ["tcp", pytest.param("grpc", marks=pytest.mark.full)]


def be_loaded(_rank):
    """Do nothing. When all have answered, all processes have loaded torch and this module."""


def sum_until_error(rank, reducers, job, settings):
    """Check sums one after the other; return the error that ends them, and when that sum began and ended."""
    with rank.state(reducers, job, **settings) as state:
        for step in range(5):
            rank.round(state, 10_000, step)
        rank.tell("running")
        step, error = 5, None
        while error is None:
            began = time.monotonic()
            error = rank.error_of(lambda step=step: rank.round(state, 10_000, step))
            step += 1
        ended = time.monotonic()
        assert state.error is error
        return error, began, ended


def received_bytes(address):
    """Return the bytes that a reducer's one job has pushed in all its epochs, and its epoch."""
    [job] = status_of(address)["jobs"] or [{"received_bytes": 0, "epoch": 0}]
    return job["received_bytes"], job["epoch"]


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("plane", TCP_OR_FULL, indirect=True)
def test_a_stopped_reducer_is_left_out_and_readmitted_when_it_resumes(ranks, serve, job, until, stopped):
    stays, stops = serve(), serve()
    call = ranks.begin(2, train_until_told, [stays.address, stops.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    stopped(stops.pid)
    steps = call.hear(0)
    while call.hear(0) < steps + 30:  # without it, because the trainers check every gradient
        pass
    assert state_of(stops.pid) == "T"
    _, epoch = received_bytes(stays.address)
    assert epoch == 2
    os.kill(stops.pid, signal.SIGCONT)
    until(lambda: received_bytes(stops.address)[1] > epoch, "the epoch that takes it in")
    before, _ = received_bytes(stops.address)
    until(lambda: received_bytes(stops.address)[0] > before, "pushes to it")
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("plane", "victim"),
    [
        ("tcp", 1),
        *(pytest.param(*case, marks=pytest.mark.full) for case in (("tcp", 0), ("grpc", 0), ("grpc", 1))),
    ],
    indirect=["plane"],
)
def test_a_worker_that_was_stopped_for_a_while_is_only_late(ranks, reducers, job, stopped, plane, victim):
    call = ranks.begin(3, train_until_told, reducers(2), job, {"chunk_bytes": 4096})
    call.hear(0)
    pid = ranks.processes[victim].process.pid
    stopped(pid)
    time.sleep(STOPPED_S)  # the subject of the test, not a wait for a condition
    assert not call.is_done
    os.kill(pid, signal.SIGCONT)
    steps = call.hear(0)
    while call.hear(0) < steps + 20:
        pass
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]


def sum_many(rank, reducers, job, rounds):
    """Check many sums; report after a few."""
    with rank.state(reducers, job) as state:
        for step in range(rounds):
            rank.round(state, 10_000, step)
            if step == 5:
                rank.tell("running")
        assert state.error is None


@pytest.mark.parametrize(("victim", "speaker"), [(0, 1), (2, 0)])
def test_a_worker_that_is_stopped_is_named(fresh_ranks, serve, job, stopped, victim, speaker):
    """The warning is on the lowest rank that waits, and in the log of the reducer."""
    reducer, ranks = serve(), fresh_ranks()
    call = ranks.begin(3, sum_many, [reducer.address], job, 500, group=False)
    assert [call.hear(rank) for rank in range(3)] == ["running"] * 3
    pid = ranks.processes[victim].process.pid
    stopped(pid)
    time.sleep(STOPPED_S)  # the subject of the test, not a wait for a condition
    os.kill(pid, signal.SIGCONT)
    call.answers()
    name = f"rank {victim} ({socket.gethostname()})"
    [warning] = [line for line in ranks.processes[speaker].log.text.splitlines() if "is not done" in line]
    assert f"{name} is late by 5 s: " in warning
    assert "is not done after 5 s" in warning
    assert f"has waited 5 s for {name}" in reducer.log.text


@pytest.mark.usefixtures("plane")
def test_a_worker_that_stays_stopped_causes_a_timeout_on_all_others(ranks, reducers, job, stopped):
    settings = {"timeout_s": 4.0, "stall_warn_s": 1.0}
    # A process that has not loaded torch yet may reach the first sum later than `timeout_s` allows.
    ranks.run(3, be_loaded, group=False)
    call = ranks.begin(3, sum_until_error, reducers(2), job, settings, group=False)
    assert [call.hear(rank) for rank in range(3)] == ["running"] * 3
    pid = ranks.processes[1].process.pid
    stopped(pid)
    call.wait_for(0, 2)
    os.kill(pid, signal.SIGCONT)
    answers = call.answers()
    error, _, _ = answers.pop(
        1
    )  # it hears of it, or notices first how late it is, and then has read no names
    assert type(error) is CollectiveTimeout
    # The timeout starts at the first push of the rank that notices it. The other rank may have pushed later.
    first_began = min(began for _, began, _ in answers)
    for error, _, ended in answers:
        assert type(error) is CollectiveTimeout
        # The number of chunks depends on the grid that rank 0 has chosen by then.
        assert re.search(r"is not done after \d s, \d+ of \d+ chunks are missing at ", str(error))
        assert f"rank 1 ({socket.gethostname()}) is late by " in str(error)
        assert ended - first_began >= settings["timeout_s"]
