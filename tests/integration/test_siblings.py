"""`reducer serve --workers N`: several processes behind one address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.children import environment, state_of
from support.reducers import READY, reducer_command, status_of
from support.training import train_until_told

from reducer.resources.allowance import MEMORY_SHARE, WORKERS_DEFAULT_MAX, cores, memory


def siblings_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return state_of(pid) == "Z"
    except OSError:
        return True


def addresses_of(reducer) -> list[str]:
    ports = status_of(reducer.address)["siblings"]
    return [reducer.address, *(f"127.0.0.1:{port}" for port in ports)]


def bytes_at(address: str) -> int:
    """Return what has come from the only job; 0 if there is none, or nobody answers."""
    try:
        return sum(job["received_bytes"] for job in status_of(address)["jobs"])
    except subprocess.CalledProcessError:
        return 0


@pytest.fixture
def three(serve):
    return serve("--workers", "3")


@pytest.mark.usefixtures("plane")
def test_one_address_is_enough_to_use_all_processes(ranks, three, job):
    call = ranks.begin(3, train_until_told, [three.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    call.hear(0)
    addresses = addresses_of(three)
    assert len(set(addresses)) == 3
    received = [bytes_at(address) for address in addresses]
    assert all(received), received
    table = reducer_command("status", three.address)
    assert all(f"{address}: serving" in table for address in addresses)
    assert table.count(job) == 3
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]


def test_two_of_several_processes_each(ranks, serve, job):
    """Every rank finds the siblings of all that it was given."""
    both = [serve("--workers", "2"), serve("--workers", "2")]
    call = ranks.begin(2, train_until_told, [one.address for one in both], job, {"chunk_bytes": 4096})
    call.hear(0)
    call.hear(0)
    assert all(bytes_at(address) for one in both for address in addresses_of(one))
    call.tell(0, 1)
    call.answers()


def test_a_sibling_that_is_killed_comes_back_where_it_was(ranks, three, job, until):
    call = ranks.begin(3, train_until_told, [three.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    addresses = addresses_of(three)
    before = siblings_of(three.pid)
    os.kill(before[0], signal.SIGKILL)
    steps = call.hear(0)
    while call.hear(0) < steps + 20:
        pass
    until(lambda: len(siblings_of(three.pid)) == 2 and siblings_of(three.pid) != before, "another sibling")
    assert addresses_of(three) == addresses
    until(lambda: all(bytes_at(address) > 50_000 for address in addresses), "the job in all processes")
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]
    assert "sibling ended and starts again number=" in three.log.text


@pytest.fixture
def only_one_core():
    """Have this thread, and what it starts, run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def defaults(tmp_path) -> tuple[dict, str]:
    """Return the status of `reducer serve` without options, and its log."""
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "reducer", "serve", "--bind", "127.0.0.1:0", "--stop-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
        )
    try:
        status = status_of(process.stdout.readline().removeprefix(READY).strip())
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
    return status, (tmp_path / "log").read_text()


def test_by_default_there_are_as_many_processes_as_cores_and_memory_is_shared(tmp_path):
    status, log = defaults(tmp_path)
    assert len(status["siblings"]) == max(1, min(int(cores()), WORKERS_DEFAULT_MAX)) - 1
    limit = int(memory() * MEMORY_SHARE)
    assert status["memory_limit_bytes"] == limit // (1 + len(status["siblings"]))
    assert (
        f"using workers={1 + len(status['siblings'])} of cores={cores():.4g} memory_limit={limit} of" in log
    )


@pytest.mark.usefixtures("only_one_core")
def test_one_core_is_one_process(tmp_path):
    status, log = defaults(tmp_path)
    assert status["siblings"] == []
    assert status["memory_limit_bytes"] == int(memory() * MEMORY_SHARE)
    assert "using workers=1 of cores=1 " in log


def test_more_memory_than_there_is_is_a_warning(serve):
    reducer = serve("--memory-limit", str(1 << 50))
    warning = (
        f"--memory-limit {1 << 50} is more than the {memory()} bytes of memory that this machine or container"
    )
    assert f"level=WARNING logger=reducer.lifecycle pid={reducer.pid} {warning}" in reducer.log.text
    assert status_of(reducer.address)["memory_limit_bytes"] == 1 << 50


def test_sigterm_ends_them_all(three):
    siblings = siblings_of(three.pid)
    assert len(siblings) == 2
    assert three.stop() == (0, "")
    assert all(is_gone(pid) for pid in siblings)


def test_siblings_end_with_the_first_process(three, until):
    siblings = siblings_of(three.pid)
    three.kill()
    until(lambda: all(is_gone(pid) for pid in siblings), "the end of the siblings")


def test_an_address_that_is_taken_leaves_no_sibling_behind(three, serve):
    with pytest.raises(pytest.fail.Exception, match="cannot bind an address"):
        serve("--workers", "2", bind=three.address)
