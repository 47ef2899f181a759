"""macOS lacks affinity, /proc, /sys and some socket options. The defaults must work without them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from reduction.process.ready import wait_until_ready
from support.processes.children import START_S, environment
from support.processes.reducers import status_of

from reducer.resources.host_limits import PROCESSES_DEFAULT_MAX

LESS = """
import builtins, io, os, socket

for module, names in {os: ("sched_getaffinity", "pidfd_open"), socket: ("TCP_INFO", "TCP_KEEPIDLE")}.items():
    for name in names:
        delattr(module, name)

def hide(module, name):
    function = getattr(module, name)
    def hidden(path, *arguments, **settings):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return function(path, *arguments, **settings)
    setattr(module, name, hidden)

hide(builtins, "open")
hide(io, "open")
for name in ("stat", "listdir", "scandir", "readlink"):
    hide(os, name)
"""
REDUCER = """
from reducer.commands.main import main
main(["serve", "--bind", "127.0.0.1:0", "--stop-with-stdin"], prog_name="reducer")
"""
WORKER = """
import sys
import torch
import torch.distributed as dist
from worker_plugin import ReductionState

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with ReductionState(sys.argv[1:] or None, join_timeout_s=60) as state:
    tensor = torch.arange(3.0)
    state.all_reduce(tensor).wait()
    print(tensor.tolist())
"""


@pytest.fixture
def less(tmp_path):
    """Return a function that starts Python with reduced modules."""

    def start(script, *arguments):
        path = tmp_path / "script.py"
        path.write_text(LESS + script)
        return subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    return start


def test_reducer_defaults_work(less):
    process = less(REDUCER)
    try:
        status = status_of(wait_until_ready(process, START_S))
    finally:
        process.stdin.close()
        code = process.wait(START_S)
        process.stdout.close()
    assert code == 0
    assert len(status["siblings"]) < PROCESSES_DEFAULT_MAX
    assert status["memory_limit_bytes"] > 0


@pytest.mark.parametrize("is_embedded", [False, True], ids=["listed", "embedded"])
def test_worker_defaults_work(less, reducer, is_embedded):
    process = less(WORKER, *([] if is_embedded else [reducer.address]))
    output, _ = process.communicate(timeout=90)
    assert (process.returncode, output) == (0, "[0.0, 1.0, 2.0]\n")
