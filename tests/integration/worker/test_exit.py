"""The end of a training script: it leaves no thread behind that could abort the process."""

import subprocess
import sys

import pytest
from support.processes.warm import warm

SCRIPT = """
import atexit, sys, threading

@atexit.register  # first, so it runs last
def last():
    print(*[thread.name for thread in threading.enumerate()], sep=",")

import torch
from worker_plugin import ReductionState

def train():
    state = ReductionState([sys.argv[1]], job=sys.argv[2], rank=int(sys.argv[3]), world_size=2)
    for _ in range(3):
        state.all_reduce(torch.ones(1 << 22)).wait()  # 16 MiB of private memory take a while to free
    return state

LEAVE
"""
IN_A_NODE = """
import multiprocessing, os
import torch.distributed as dist

def in_a_node():
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[4], 2), rank=int(sys.argv[3]), world_size=2)
    state = ReductionState([sys.argv[1]], job=sys.argv[2], local_group=2)
    for _ in range(3):
        state.all_reduce(torch.ones(1 << 20)).wait()
    child = os.fork()
    if child == 0:  # with copies of everything, and without the threads; it ends as multiprocessing's do
        del state
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    state.all_reduce(torch.ones(5)).wait()
    return state

"""
WAYS = {
    "closed": "train().close()",
    "dropped": "train()",
    "dropped with a collective in flight": "future = train().all_reduce(torch.ones(1 << 22))",
    "kept": "state = train()",
    "in the with statement": "with train(): pass",
}


@pytest.mark.parametrize("way", list(WAYS))
def test_no_thread_of_ours_outlives_the_script(way, plane, reducer, job, child_environment):
    """A thread that returns from C++ while the interpreter ends aborts the process, and torchrun would restart it."""
    end_well(
        SCRIPT.replace("LEAVE", WAYS[way]),
        (reducer.address, job),
        child_environment(REDUCTION_TRANSPORT=plane),
        python=sys.executable if (way, plane) == ("dropped", "auto") else None,
    )


@pytest.mark.parametrize("way", list(WAYS))
def test_no_thread_outlives_it_in_hierarchical_mode(way, reducer, job, child_environment, tmp_path):
    """A forked child has copies of Gloo's groups without their threads, and must also end without an abort."""
    script = SCRIPT.replace("LEAVE", IN_A_NODE + WAYS[way].replace("train", "in_a_node"))
    end_well(script, (reducer.address, job), child_environment(), str(tmp_path / "store"))


def end_well(script, arguments, environment, *more, python=None):
    children = [
        subprocess.Popen(
            [python or warm(), "-c", script, *arguments, str(rank), *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        output, log = child.communicate(timeout=60)
        assert child.returncode == 0, log
        assert "reduction-" not in output
        # Rank 0 reports what it uses, and on a busy machine a rank may say that it waits for the other.
        expected = (": reduction-server: ", ": waiting for rank ")
        assert [line for line in log.splitlines() if not any(text in line for text in expected)] == []
