"""How a job continues when reducers are lost, for each value of `on_reducer_loss` and `fallback`."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ReducerUnavailable
from support.planes import ANY_PLANE
from support.processes.reducers import status_of
from support.training.checked import train_until_told


def go_on(call, steps=20):
    """Wait until the training has done `steps` more steps."""
    first = call.hear(0)
    while call.hear(0) < first + steps:
        pass


def end(call):
    """Let the training stop, and check that all ranks have the same weights."""
    call.tell(0, 1)
    answers = call.answers()
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_wait_continues_when_the_same_reducers_are_back(ranks, serve, free_port, job):
    stays, goes = serve(), serve(bind=f"127.0.0.1:{free_port()}")
    settings = {"on_reducer_loss": "wait", "chunk_bytes": 4096}
    call = ranks.begin(2, train_until_told, [stays.address, goes.address], job, settings)
    call.hear(0)
    goes.kill()
    time.sleep(2.0)  # twice the grace period, after which "reshard" would continue with the other reducer
    assert status_of(stays.address)["jobs"][0]["epoch"] == 1
    back = serve(bind=goes.address)
    go_on(call)
    end(call)
    assert back.process.poll() is None
    assert "epoch 2 with 2 reducers" in "".join(process.log.text for process in ranks.processes)


def fail_of_a_lost_reducer(rank, reducers, job, settings):
    """All-reduce until an error occurs; return it."""
    with rank.state(reducers, job, **settings) as state:
        rank.round(state, 50_000)
        rank.tell("there")
        while (error := rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(50_000))))) is None:
            pass
        assert state.error is not None
        return type(error), str(error)


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_raise_fails_on_all_ranks_and_names_the_reducer(ranks, serve, job):
    stays, goes = serve(), serve()
    call = ranks.begin(
        3, fail_of_a_lost_reducer, [stays.address, goes.address], job, {"on_reducer_loss": "raise"}
    )
    for rank in range(3):
        assert call.hear(rank) == "there"
    goes.kill()
    for kind, text in call.answers():
        assert kind is ReducerUnavailable
        assert f"lost {goes.address}, and on_reducer_loss is 'raise'" in text


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_the_fallback_takes_over_and_hands_back(ranks, serve, free_port, job, until):
    """Every gradient has the same bits before the fallback, on it, and after it."""
    only = serve(bind=f"127.0.0.1:{free_port()}")
    settings = {"fallback": "embedded", "join_timeout_s": 10}
    call = ranks.begin(2, train_until_told, [only.address], job, settings)
    call.hear(0)
    only.kill()
    go_on(call, 30)
    back = serve(bind=only.address)
    until(lambda: [job for job in status_of(back.address)["jobs"] if job["received_bytes"]], "the job")
    go_on(call)
    end(call)
    said = [process.log.text.count("fallback='embedded'") for process in ranks.processes[:2]]
    assert said[0] >= 1, "rank 0 did not say so"


def start_without(rank, reducers, job, local_group):
    settings = {"fallback": "embedded", "join_timeout_s": 10, "local_group": local_group}
    with rank.state(reducers, job, **settings) as state:
        for step in range(3):
            rank.round(state, 10_000, step=step)
        return str(state.error)


@pytest.mark.parametrize("local_group", [None, "auto"])  # "auto" changes nothing without a launcher
def test_a_job_that_finds_no_reducer_at_all_starts_on_the_fallback(ranks, free_port, job, local_group):
    assert ranks.run(2, start_without, [f"127.0.0.1:{free_port()}"], job, local_group) == ["None", "None"]


def test_a_fallback_needs_a_process_group(ranks, reducers, job):
    for error in ranks.run(2, fallback_alone, reducers(1), job, group=False):
        assert type(error) is ConfigError
        assert "fallback='embedded' needs a way to inform all ranks" in str(error)


def fallback_alone(rank, reducers, job):
    assert not dist.is_initialized()
    with rank.state(reducers, job, fallback="embedded") as state:
        return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
