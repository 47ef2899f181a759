"""What supervisors rely on: probes, ending with the job, exit codes, variables, and machine-readable logs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from reduction.process.ready import wait_until_ready
from support.planes import ANY_PLANE
from support.processes.children import START_S, environment


def hold(rank, reducers, job):
    """Keep a job alive until the test releases it."""
    with rank.state(reducers, job) as state:
        rank.round(state, 5_000)
        rank.tell("there")
        rank.hear()


def answer(port: int, path: str) -> tuple[int, str]:
    """Return the status code and the text of the HTTP port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes(ranks, serve, free_port, job, until):
    port = free_port()
    reducer = serve("--metrics-port", str(port))
    assert answer(port, "/livez") == answer(port, "/readyz") == (200, "ok\n")
    call = ranks.begin(2, hold, [reducer.address], job, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    reducer.is_over = True
    reducer.process.terminate()
    until(lambda: answer(port, "/readyz") == (503, "starting, draining or stopping\n"), "503")
    assert answer(port, "/livez") == (200, "ok\n")
    assert 'reducer_draining{process="0"} 1.0' in answer(port, "/metrics")[1]
    call.tell(0, "done")
    call.tell(1, "done")
    call.answers()
    assert reducer.end() == (0, "")


@pytest.mark.usefixtures("plane")
@ANY_PLANE
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_reducer_ends_with_its_job(ranks, serve, job, processes):
    reducer = serve("--exit-after-job", "1", "--processes", processes, leash=False)
    call = ranks.begin(2, hold, [reducer.address], job, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    with pytest.raises(subprocess.TimeoutExpired):
        reducer.process.wait(2.0)  # it does not end while there is a job
    call.tell(0, "done")
    call.tell(1, "done")
    call.answers()
    assert reducer.end() == (0, "")
    assert "no job for 1 s (--exit-after-job)" in reducer.log.text


def test_a_reducer_is_configured_by_variables_and_notifies_its_service_manager(tmp_path, free_port):
    """Child processes and the job's own reducers must not use these variables: their ports would collide."""
    path, port = str(tmp_path / "notify"), free_port()
    variables = {
        "REDUCER_BIND": f"127.0.0.1:{port}",
        "REDUCER_METRICS_PORT": str(free_port()),
        "REDUCER_PROCESSES": "2",
        "REDUCER_LOG_FORMAT": "json",
        "NOTIFY_SOCKET": path,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(START_S)
        command = [sys.executable, "-m", "reducer", "serve"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )
        try:
            assert wait_until_ready(process, START_S) == f"127.0.0.1:{port}"
            assert manager.recv(100) == b"READY=1"
            process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            _, log = process.communicate(timeout=START_S)
        finally:
            process.kill()
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
    assert process.returncode == 0
    records = [json.loads(line) for line in log.splitlines()]
    assert len({record["pid"] for record in records}) == 3
    assert all(record["level"] == "info" for record in records)
    assert any(record["message"].startswith("serving address=") for record in records)
