"""Ranks forked by multiprocessing end with os._exit, without running `atexit`, but still send Goodbye."""

from __future__ import annotations

import subprocess

import pytest
from support.processes.warm import warm

SCRIPT = """
import multiprocessing, os, sys, threading
from multiprocessing import util

def say(text):  # at once, because there are others who do
    os.write(1, f"{text}\\n".encode())

def train(rank, way, has_returned, is_gone, pids):
    import torch, torch.distributed as dist
    from reduction.errors import ReductionError
    from worker_plugin import ReductionState
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
    settings = {} if way == "embedded" else {"reducers": [sys.argv[2]], "job": sys.argv[3]}
    if way == "in a node":
        settings["local_group"] = 2
    global state  # nobody closes it, and nobody lets go of it
    state = ReductionState(**settings)

    def step():
        tensor = torch.ones(1 << 20)
        state.all_reduce(tensor).wait()
        say(f"rank {rank}: sum of {int(tensor[-1])}")

    if rank == 0:
        util.Finalize(None, has_returned.set, exitpriority=-1)  # after all that come first
        if way == "in a thread":  # which every process waits for at its end
            threading.Thread(target=step).start()
        else:
            step()
            if way == "embedded":
                pids.put(state._communicator._meeting_points[0].embedded._process.pid)
    else:
        if way == "in a thread":
            assert has_returned.wait(60)
        step()
        assert is_gone.wait(60)
        if way != "embedded":
            try:
                step()
            except ReductionError as error:
                say(f"rank {rank}: {type(error).__name__}")

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    has_returned, is_gone, pids = context.Event(), context.Event(), context.SimpleQueue()
    arguments = sys.argv[4], has_returned, is_gone, pids
    ranks = [context.Process(target=train, args=(rank, *arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    ranks[0].join(60)
    if sys.argv[4] == "embedded":
        there = os.path.exists(f"/proc/{pids.get()}")
        say("the reducer is still there" if there else "the reducer is gone")
    is_gone.set()
    ranks[1].join(60)
    say(f"exit codes {ranks[0].exitcode} {ranks[1].exitcode}")
"""


def lines_of(way, store, *arguments, environment):
    """Run the script; return the lines that it prints and the lines that it logs."""
    command = [warm(), "-c", SCRIPT, str(store), *(arguments or ("", "")), way]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    return sorted(run.stdout.splitlines()), run.stderr.splitlines()


@pytest.mark.parametrize("way", ["flat", "in a node", "in a thread"])
def test_a_rank_that_ends_sends_goodbye(way, reducer, job, tmp_path, child_environment):
    """The other rank learns that this one has closed, not that it is lost."""
    lines, log = lines_of(
        way, tmp_path / "store", reducer.address, job, environment=child_environment(REDUCTION_LOG="warning")
    )
    assert lines == ["exit codes 0 0", "rank 0: sum of 2", "rank 1: PeerLeft", "rank 1: sum of 2"]
    assert log == []


def test_a_rank_that_ends_stops_its_own_reducer(tmp_path, child_environment):
    """It waits for the end of its reducer, which may take long if others are not done."""
    lines, log = lines_of(
        "embedded", tmp_path / "store", environment=child_environment(REDUCTION_LOG="warning")
    )
    assert lines == ["exit codes 0 0", "rank 0: sum of 2", "rank 1: sum of 2", "the reducer is gone"]
    assert all("lost the stream" in line for line in log)
