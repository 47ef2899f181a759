"""A proxy in the environment, as in many companies, must be ignored; nothing listens at the one of these tests."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from support.processes.children import environment

NAMES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY")
WORKER = """
import sys
import torch
from worker_plugin import ReductionState

with ReductionState(sys.argv[1], job="proxy", rank=0, world_size=1, transport=sys.argv[2], join_timeout_s=20) as state:
    tensor = torch.arange(3.0)
    state.all_reduce(tensor).wait()
    print(tensor.tolist())
"""


@pytest.fixture
def closed():
    """Yield the address of a port that no other program can take and that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def behind(closed):
    """Return a function that runs Python with a proxy in the environment."""

    def run(*arguments):
        proxies = dict.fromkeys(NAMES, f"http://{closed}")
        env = {name: value for name, value in environment().items() if name.lower() != "no_proxy"}
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env | proxies)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout

    return run


def test_worker_ignores_proxy(reducer, plane, behind):
    assert behind("-c", WORKER, reducer.address, plane) == "[0.0, 1.0, 2.0]\n"


def test_status_ignores_proxy(reducer, behind):
    assert f"{reducer.address}: serving" in behind("-m", "reducer", "status", reducer.address, "-v")


def test_worker_and_embedded_reducer_ignore_proxy(behind):
    script = WORKER.replace('sys.argv[1], job="proxy", rank=0, world_size=1, ', "")
    start = "import torch.distributed as dist\n"
    start += 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n'
    assert behind("-c", start + script, "", "auto") == "[0.0, 1.0, 2.0]\n"
