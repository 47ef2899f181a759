"""The end of a training script: it leaves no thread behind, and so cannot be aborted by one."""

import subprocess
import sys

import pytest

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
WAYS = {
    "closed": "train().close()",
    "dropped": "train()",
    "kept": "state = train()",
    "in the with statement": "with train(): pass",
}


@pytest.mark.parametrize("way", list(WAYS))
def test_no_thread_of_ours_outlives_the_script(way, plane, reducer, job, child_environment):
    """One that comes back from C++ while the interpreter ends aborts the process: torchrun would start it again."""
    script = SCRIPT.replace("LEAVE", WAYS[way])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, reducer.address, job, str(rank)],
            env=child_environment(REDUCTION_TRANSPORT=plane),
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
        assert log == ""
