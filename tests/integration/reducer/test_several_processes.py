"""`reducer serve --processes N`: several processes behind one address."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from reduction.process.ready import wait_until_ready
from support.planes import ANY_PLANE
from support.processes.children import children_of, environment
from support.processes.reducers import looked_at, reducer_command, status_of
from support.training.checked import train_until_told

from reducer.resources.host_limits import MEMORY_SHARE, PROCESSES_DEFAULT_MAX, cores, memory


def hold(rank, reducers, job):
    """Keep a job alive until the test ends."""
    with rank.state(reducers, job, chunk_bytes=4096) as state:
        rank.round(state, 5_000)
        rank.tell("there")
        rank.hear()


def addresses_of(reducer) -> list[str]:
    ports = status_of(reducer.address)["siblings"]
    return [reducer.address, *(f"127.0.0.1:{port}" for port in ports)]


def bytes_at(address: str) -> int:
    """Return the bytes received from the only job; 0 if there is none or the address does not answer."""
    try:
        return sum(job["received_bytes"] for job in status_of(address)["jobs"])
    except subprocess.CalledProcessError:
        return 0


@pytest.fixture
def three(serve):
    return serve("--processes", "3")


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_one_address_is_enough_to_use_all_processes(ranks, three, job, until):
    call = ranks.begin(3, train_until_told, [three.address], job, {"chunk_bytes": 4096})
    addresses = addresses_of(three)
    assert len(set(addresses)) == 3
    until(lambda: all(bytes_at(address) for address in addresses), "payload at all processes")
    table = reducer_command("status", three.address)
    assert all(re.search(rf"^ *{address} +serving ", table, re.MULTILINE) for address in addresses)
    assert re.search(r"^total ", table, re.MULTILINE)
    assert len(re.findall(rf"^{re.escape(job)} +3/3 +running +[0-9.]+ +[0-9.]+ ", table, re.MULTILINE)) == 1
    verbose = reducer_command("status", three.address, "--verbose")
    assert all(f"{address}: serving" in verbose for address in addresses)
    assert verbose.count(f"  {job}\n") == 3
    seen = looked_at(three.address, three.address.replace("127.0.0.1", "localhost"))
    assert [process["address"] for process in seen["processes"]] == addresses
    assert [(one["job"], one["state"], one["processes"]) for one in seen["jobs"]] == [(job, "running", 3)]
    assert seen["jobs"][0]["received_bytes"] == sum(
        part["received_bytes"] for process in seen["processes"] for part in process["jobs"]
    )
    assert {peer["presence"] for one in seen["processes"] for peer in one["jobs"][0]["peers"]} == {"present"}
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]


def test_two_reducers_of_several_processes_each(ranks, serve, job, until):
    """Every rank finds the siblings of all the reducers that it was given."""
    both = [serve("--processes", "2"), serve("--processes", "2")]
    call = ranks.begin(2, train_until_told, [one.address for one in both], job, {"chunk_bytes": 4096})
    addresses = [address for one in both for address in addresses_of(one)]
    until(lambda: all(bytes_at(address) for address in addresses), "payload at all processes")
    call.tell(0, 1)
    call.answers()


@pytest.fixture
def only_one_core():
    """Pin this thread, and the processes that it starts, to one core."""
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
        status = status_of(wait_until_ready(process, 30))
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
    return status, (tmp_path / "log").read_text()


def test_by_default_there_is_one_process_per_core_and_memory_is_divided(tmp_path):
    status, log = defaults(tmp_path)
    assert len(status["siblings"]) == max(1, min(int(cores()), PROCESSES_DEFAULT_MAX)) - 1
    limit = int(memory() * MEMORY_SHARE)
    assert status["memory_limit_bytes"] == limit // (1 + len(status["siblings"]))
    assert (
        f"using processes={1 + len(status['siblings'])} of cores={cores():.4g} memory_limit={limit} of" in log
    )


@pytest.mark.usefixtures("only_one_core")
def test_one_core_is_one_process(tmp_path):
    status, log = defaults(tmp_path)
    assert status["siblings"] == []
    assert status["memory_limit_bytes"] == int(memory() * MEMORY_SHARE)
    assert "using processes=1 of cores=1 " in log


def test_a_memory_limit_beyond_the_machine_logs_a_warning(serve):
    reducer = serve("--memory-limit", str(1 << 50))
    warning = (
        f"--memory-limit {1 << 50} is more than the {memory()} bytes of memory that this machine or container"
    )
    assert (
        f"level=WARNING logger=reducer.process.log_resources pid={reducer.pid} {warning}" in reducer.log.text
    )
    assert status_of(reducer.address)["memory_limit_bytes"] == 1 << 50


def test_the_former_name_of_the_option(serve):
    assert len(status_of(serve("--workers", "2").address)["siblings"]) == 1


def lines_of(url: str, name: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return re.findall(rf"^{name}.*$", answer.read().decode(), re.MULTILINE)


def processes_up(url: str) -> list[str]:
    return lines_of(url, "reducer_process_up")


def starts(url: str) -> list[str]:
    return lines_of(url, "process_start_time_seconds")


def test_one_port_serves_the_metrics_of_all_processes(ranks, serve, free_port, job, until):
    port = free_port()
    reducer = serve("--processes", "3", "--metrics-port", str(port))
    url = f"http://127.0.0.1:{port}/metrics"
    until(lambda: f"metrics={url} " in reducer.log.text, "the line")
    call = ranks.begin(2, train_until_told, [reducer.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    call.hear(0)
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = {one.name: one.samples for one in text_string_to_metric_families(answer.read().decode())}
    up = [f'reducer_process_up{{process="{number}"}} 1.0' for number in range(3)]
    assert processes_up(url) == up
    chunks = {one.labels["process"]: one for one in families["reducer_chunks"]}
    assert set(chunks) == {"0", "1", "2"}
    assert all(one.labels["training_job"] == job and one.value > 0 for one in chunks.values())
    begun = starts(url)
    os.kill(children_of(reducer.pid)[-1], signal.SIGKILL)
    until(lambda: len(starts(url)) == 3 and starts(url) != begun, "the metrics of the process that came back")
    assert processes_up(url) == up
    call.tell(0, 1)
    call.answers()


def test_an_address_that_is_taken_is_named(three, serve):
    with pytest.raises(pytest.fail.Exception, match=f"--bind {three.address}: cannot listen on"):
        serve("--processes", "2", bind=three.address)
