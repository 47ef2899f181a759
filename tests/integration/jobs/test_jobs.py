"""Several jobs, and several lives of one job, on the same reducers."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from reduction.errors import JobBusy, RankTaken, StaleInstance, WorkerLost
from support.planes import ANY_PLANE, OVER_A_NETWORK
from support.processes.ranks import Died
from support.processes.reducers import status_of

ROUNDS = 40


# ---- in the ranks ----


def one_of_two_jobs(rank, reducers, job, world_size):
    """Make ranks below `world_size` one job and the others a second job, with other sizes and chunks."""
    which, number = divmod(rank.number, world_size)
    settings = {"rank": number, "world_size": world_size, "chunk_bytes": (4096, 65536)[which]}
    with rank.state(reducers, f"{job}-{which}", **settings) as state:
        pending = []
        for step in range(ROUNDS):
            shape = (1000 * (which + 1) + step,)
            parts = [rank.values(10 * which + other, shape, step=step) for other in range(world_size)]
            tensor = parts[number].clone()
            pending.append((state.all_reduce(tensor), rank.fold(parts, dist.ReduceOp.SUM)))
            if step % 8 == 0 or step == ROUNDS - 1:
                for future, expected in pending:
                    assert torch.equal(rank.wait(future), expected), f"job {which}, around step {step}"
                pending.clear()


def lives(rank, reducers, job, count):
    for _ in range(count):
        with rank.state(reducers, job) as state:
            for step in range(3):
                rank.round(state, step=step)


def one_of_two_runs(rank, reducers, job):
    """Return the sum, or the error, of rank 0 of run x, rank 1 of run y, or rank 1 of run x, once it may start."""
    run, number = (("x", 0), ("y", 1), ("x", 1))[rank.number]
    rank.hear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDUCTION_RUN", run)
        with rank.state(reducers, job, rank=number, world_size=2) as state:
            try:
                return rank.wait(state.all_reduce(torch.full((1000,), {"x": 1.0, "y": 100.0}[run]))).tolist()
            except JobBusy as error:
                return str(error)


def run_until_killed(rank, reducers, job):
    state = rank.state(reducers, job)
    rank.round(state)
    rank.tell("running")
    for step in range(1_000_000):
        rank.round(state, 100_000, step=step)


def sum_until_one_is_killed(rank, reducers, job, victim):
    """Return the error that ends the job; the victim kills itself with much in flight."""
    with rank.state(reducers, job, chunk_bytes=4096) as state:
        for step in range(10):
            rank.round(state, step=step)
        rank.tell("running")
        futures = [state.all_reduce(torch.ones(100_000)) for _ in range(20)]
        if rank.number == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        error = None
        for future in futures:
            error = error or rank.error_of(lambda future=future: rank.wait(future))
        # Collectives that were complete before the loss are correct, and none completes after it.
        error = error or rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
        assert state.error is error
        return error


def intrude(rank, reducers, job, identities):
    """Run a job on ranks 0 and 1; meanwhile the other processes claim to be (rank, world size) of it."""
    live = rank.number < 2
    number, world_size = (rank.number, 2) if live else identities[rank.number - 2]
    settings = {"rank": number, "world_size": world_size, "join_timeout_s": 20}
    with rank.state(reducers, job, **settings) as state:
        if live:
            rank.round(state, step=1)
        dist.barrier()
        error = None if live else rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(3))))
        assert state.error is error
        dist.barrier()
        if live:  # on the same communicator
            rank.round(state, step=2)
    dist.barrier()
    return error


def claim(rank, reducers, job, claimed):
    """Claim ranks of one job at the same time; return the outcome."""
    settings = {"rank": claimed[rank.number], "world_size": 2, "join_timeout_s": 20}
    with rank.state(reducers, job, **settings) as state:
        tensor = torch.ones(3)
        error = rank.error_of(lambda: rank.wait(state.all_reduce(tensor)))
        dist.barrier()  # no rank leaves before all know the outcome
        return error or tensor.tolist()


# ---- tests ----


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_reported_to_all_others(ranks, fresh_ranks, reducers, job, victim):
    call = fresh_ranks().begin(3, sum_until_one_is_killed, reducers(2), job, victim, group=False)
    answers = call.answers()
    assert isinstance(answers.pop(victim), Died)
    for error in answers:
        assert type(error) is WorkerLost
        assert f"rank {victim}" in str(error)
    ranks.run(2, lives, reducers(2), job, 1, group=False)  # the name is free


def test_two_jobs_at_once(ranks, reducers, job):
    ranks.run(4, one_of_two_jobs, reducers(2), job, 2, group=False)


def test_two_runs_of_one_name_do_not_mix(ranks, reducers, job):
    addresses = reducers(2)
    call = ranks.begin(3, one_of_two_runs, addresses, job, group=False)
    call.tell(0, None)
    while not all(job in str(status_of(address)["jobs"]) for address in addresses):
        pass
    call.tell(1, None)
    call.wait_for(1)
    call.tell(2, None)
    first, stranger, second = call.answers()
    assert first == second == [2.0] * 1000
    assert "belong to different runs" in stranger
    assert f"rank 0 on {socket.gethostname()}" in stranger


def test_name_is_reusable_after_a_clean_close(ranks, reducers, job):
    ranks.run(3, lives, reducers(2), job, 5, group=False)


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_name_is_reusable_after_a_crash(ranks, fresh_ranks, reducers, job):
    crashing = fresh_ranks()
    call = crashing.begin(2, run_until_killed, reducers(2), job, group=False)
    assert [call.hear(0), call.hear(1)] == ["running", "running"]
    crashing.kill()
    ranks.run(2, lives, reducers(2), job, 2, group=False)


@pytest.mark.parametrize(
    ("k", "identities", "kinds", "texts"),
    [
        (2, [(0, 2), (1, 2)], [JobBusy, RankTaken], ["rank 0", "rank 1"]),
        (1, [(0, 1), (2, 3)], [JobBusy, JobBusy], ["rank 0", "world size 3"]),
    ],
    ids=["same-name-twice", "other-world-size"],
)
def test_an_intruder_is_turned_away(ranks, reducers, job, k, identities, kinds, texts):
    """It is refused by name within seconds. The running job is unaffected, and its name is free afterwards."""
    answers = ranks.run(4, intrude, reducers(k), job, identities)
    assert [type(error) for error in answers] == [type(None), type(None), *kinds]
    for text, error in zip(texts, answers[2:], strict=True):
        assert text in str(error)
        assert job in str(error)
    ranks.run(2, lives, reducers(k), job, 1, group=False)


@pytest.mark.parametrize("claimed", [(0, 1, 1), (0, 1, 0)], ids=["rank-1-twice", "rank-0-twice"])
def test_a_rank_is_claimed_twice_at_the_start(ranks, reducers, job, claimed):
    """No process waits forever or gets a sum of three ranks, and at least one of them gets the reason."""
    answers = ranks.run(3, claim, reducers(2), job, claimed)
    assert any(isinstance(answer, JobBusy | StaleInstance) for answer in answers), answers
    assert all(answer == [2.0, 2.0, 2.0] for answer in answers if isinstance(answer, list)), answers


# ---- two states of one process ----


def two_states(rank, reducers, job):
    """Use two states of one job, as a script with two models does if the job name comes from the environment."""
    with rank.state(reducers, job) as first, rank.state(reducers, job) as second:
        rank.round(first)
        error = rank.error_of(lambda: rank.wait(second.all_reduce(torch.ones(3))))
        assert second.error is error
        rank.round(first, step=1)
    return error


def test_a_second_state_of_a_job_in_one_process_is_refused(ranks, reducers, job):
    for error in ranks.run(2, two_states, reducers(1), job, group=False):
        assert isinstance(error, JobBusy)
        assert str(error) == (
            f"this process already has a state for job {job!r}: share it, as in attach(ddp_model, state), or "
            "give each state its own job="
        )


# ---- a slow rank ----


def issue_with_one_slow(rank, reducers, job, credit_bytes):
    """Issue 8 collectives of 4 MiB; the last rank waits for each, and then for ten times as long."""
    is_slow = rank.number == rank.world_size - 1
    with rank.state(reducers, job, credit_bytes=credit_bytes) as state:
        rank.round(state)
        rank.tell("running")
        rank.hear()
        futures = []
        for step in range(8):
            started = time.perf_counter()
            futures.append(state.all_reduce(rank.values(rank.number, (1 << 20,), step=step)))
            if is_slow:
                rank.wait(futures[-1])
                time.sleep(10 * (time.perf_counter() - started))
        for step, future in enumerate(futures):
            rows = [rank.values(other, (1 << 20,), step=step) for other in range(rank.world_size)]
            assert torch.equal(rank.wait(future), rank.fold(rows, dist.ReduceOp.SUM))
        assert state.error is None


def peak_bytes(pid):
    """Return the peak memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
def test_a_slow_rank_costs_the_reducer_no_memory(ranks, serve, job):
    """Credit bounds the reducer: 28 MiB of each fast rank wait for the slow one, in the ranks.

    With shared memory the kernel also counts the ranks' own memory for the reducer once it has read it.
    """
    n, credit_bytes, fixed_bytes = 3, 1 << 20, 12 << 20
    reducer = serve()
    call = ranks.begin(n, issue_with_one_slow, [reducer.address], job, credit_bytes, group=False)
    for number in range(n):
        assert call.hear(number) == "running"
    before = peak_bytes(reducer.pid)
    for number in range(n):
        call.tell(number, "go")
    call.answers()
    assert peak_bytes(reducer.pid) - before <= 2 * n * credit_bytes + fixed_bytes
