"""A worker dies, outlived by a DataLoader's children: all others get an error within the promised time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time

import pytest
import torch
from faults.lateness import Lateness
from reduction.errors import WorkerLost
from support.processes.ranks import Died
from torch.utils.data import DataLoader, TensorDataset

from worker_plugin.core.membership.judge import GRACE_S


def wait_for_the_victim(rank, reducers, job, victim):
    """The victim reads batches while the others wait for it in a collective; they return the outcome."""
    with rank.state(reducers, job) as state:
        for step in range(3):
            rank.round(state, 10_000, step)
        if rank.number == victim:
            data = TensorDataset(torch.arange(100_000.0))
            loader = DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context="fork")
            batches = iter(loader)
            next(batches)
            rank.tell([child.pid for child in multiprocessing.active_children()])
            while True:
                next(batches)
        future = state.all_reduce(torch.ones(10_000))
        rank.tell("waiting")
        with Lateness() as lateness:
            error = rank.error_of(lambda: rank.wait(future))
            at = time.monotonic()
        assert state.error is error
        return error, at, lateness.worst_s


def some_rounds(rank, reducers, job):
    with rank.state(reducers, job) as state:
        for step in range(3):
            rank.round(state, 10_000, step)
    return time.monotonic()


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("plane", "victim"),
    [
        ("tcp", 0),
        ("grpc", 1),
        *(pytest.param(*case, marks=pytest.mark.full) for case in (("tcp", 1), ("grpc", 0))),
    ],
    indirect=["plane"],
)
def test_a_killed_worker_is_reported_to_all_others_in_time(ranks, fresh_ranks, reducers, job, victim):
    ranks.run(3, some_rounds, reducers(2), f"{job}-first", group=False)  # so that these have torch already
    doomed = fresh_ranks()
    call = doomed.begin(3, wait_for_the_victim, reducers(2), job, victim, group=False)
    children = call.hear(victim)
    try:
        assert len(children) == 2
        for rank in {0, 1, 2} - {victim}:
            assert call.hear(rank) == "waiting"
        doomed.processes[victim].log.spare()  # its DataLoader's children lose their parent
        killed_at = time.monotonic()
        os.kill(doomed.processes[victim].process.pid, signal.SIGKILL)
        answers = call.answers()
        assert isinstance(answers.pop(victim), Died)
        for error, at, late_s in answers:
            assert type(error) is WorkerLost
            assert f"rank {victim} ({socket.gethostname()})" in str(error)
            # No rank waits for its return, because its host refuses connections to its port.
            assert at - killed_at < GRACE_S + late_s, f"{at - killed_at:.2f} s, machine late by {late_s:.2f}"
        ranks.run(3, some_rounds, reducers(2), job, group=False)  # the name is free immediately
    finally:
        for pid in children:  # they check for their parent only every 5 s
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
