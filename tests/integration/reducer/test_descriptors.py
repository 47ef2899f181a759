"""Processes with few and with many descriptors: they request as many as their links need, and work beyond 1024."""

from __future__ import annotations

import re
import subprocess

import pytest
from support.processes.children import environment
from support.processes.warm import warm

LINKS = 6
#: Descriptors beyond the open ones: enough for a process without links, and for two or three links.
FEW = 24
EMBEDDED = """
import os, resource
import torch
import torch.distributed as dist
from worker_plugin import ReductionState

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
wanted = 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
while os.open(os.devnull, os.O_RDONLY) < 1100:
    pass
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with ReductionState(join_timeout_s=60) as state:
    tensor = torch.arange(3.0)
    state.all_reduce(tensor).wait()
    print(tensor.tolist())
"""
WORKER = """
import os, resource, sys
import torch
from worker_plugin import ReductionState
from reduction.errors import ReducerUnavailable

soft, hard = len(os.listdir("/proc/self/fd")) + int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft if sys.argv[3] == "hard" else hard))
settings = {"transport": "tcp", "join_timeout_s": 5, "on_reducer_loss": sys.argv[4]}
with ReductionState([sys.argv[1]], job="few", rank=0, world_size=1, **settings) as state:
    tensor = torch.arange(3.0)
    try:
        state.all_reduce(tensor).wait()
        print(tensor.tolist(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] - soft)
    except ReducerUnavailable as error:
        print(error)
"""


def run(script, *arguments):
    ended = subprocess.run(
        [warm(), "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout + ended.stderr


def test_an_embedded_reducer_beside_more_than_1024_descriptors():
    assert run(EMBEDDED).startswith("[0.0, 1.0, 2.0]\n")


@pytest.fixture
def many(serve):
    return serve("--workers", str(LINKS))


def test_a_worker_raises_its_soft_limit(many):
    """A link needs two descriptors, but the initial soft limit allows only one per link."""
    output = run(WORKER, many.address, str(LINKS), "soft", "reshard")
    assert output.startswith("[0.0, 1.0, 2.0] ")
    assert int(output.split()[3]) >= LINKS


def test_a_hard_limit_that_is_too_low_is_named_in_the_error(many):
    output = run(WORKER, many.address, str(FEW), "hard", "wait")
    found = re.search(
        r"this process may have (\d+) descriptors, and needs (\d+) for (\d+) links: raise its hard limit",
        output,
    )
    assert found is not None, output
    allowed, needed, links = map(int, found.groups())
    assert needed > allowed
    assert 1 < links <= LINKS


def test_with_a_hard_limit_that_is_too_low_others_take_over_and_it_is_logged(many):
    output = run(WORKER, many.address, str(FEW), "hard", "reshard")
    assert output.startswith("[0.0, 1.0, 2.0] ")
    assert "raise its hard limit (ulimit -Hn)" in output
