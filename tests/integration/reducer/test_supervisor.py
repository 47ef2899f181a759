"""The parent of the serving processes restarts them on the same ports, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from reduction.process.ready import wait_until_ready
from support.processes.children import START_S, children_of, environment, is_gone
from support.processes.reducers import status_of
from support.training.checked import train_until_told


def hold(rank, reducers, job):
    """Keep a job alive until the test ends."""
    with rank.state(reducers, job, chunk_bytes=4096) as state:
        rank.round(state, 5_000)
        rank.tell("there")
        rank.hear()


@pytest.fixture
def three(serve):
    return serve("--processes", "3", leash=False)


@pytest.fixture
def free_ports(free_port):
    """Return a function that finds the first of several consecutive free ports."""

    def find(count: int) -> int:
        for _ in range(100):
            first = free_port()
            try:
                with contextlib.ExitStack() as stack:
                    for port in range(first, first + count):
                        stack.enter_context(socket.create_server(("127.0.0.1", port)))
                return first
            except OSError:
                continue
        pytest.fail(f"no {count} free ports in succession")

    return find


def ports_of(reducer) -> list[int]:
    return [reducer.port, *status_of(reducer.address)["siblings"]]


def pid_at(reducer, port: int) -> int:
    """Return the process that serves a port, according to the newest line of the log about it."""
    lines = [
        line for line in reducer.log.text.splitlines() if f" serving address=127.0.0.1:{port} grpc=" in line
    ]
    return int(lines[-1].partition("pid=")[2].split()[0])


def bytes_at(address: str) -> int:
    """Return the bytes received from the only job; 0 if there is none or the address does not answer."""
    try:
        return sum(job["received_bytes"] for job in status_of(address)["jobs"])
    except subprocess.CalledProcessError:
        return 0


# ---- a process that dies ----


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_comes_back_on_its_port(ranks, serve, job, until, victim):
    """The victim may be the first process, whose address the workers have. All ranks keep the same weights."""
    three = serve("--processes", "3")
    call = ranks.begin(3, train_until_told, [three.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    ports, children = ports_of(three), children_of(three.pid)
    assert len(children) == 3
    killed = pid_at(three, ports[victim])
    os.kill(killed, signal.SIGKILL)
    steps = call.hear(0)
    while call.hear(0) < steps + 20:
        pass
    until(lambda: pid_at(three, ports[victim]) != killed, "another process")
    assert ports_of(three) == ports
    addresses = [f"127.0.0.1:{port}" for port in ports]
    until(lambda: all(bytes_at(address) > 50_000 for address in addresses), "the job in all processes", 30)
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]
    assert f"process {victim} ended and will be restarted exit_code=-9 pause=1s" in three.log.text
    assert three.stop() == (0, "")  # no second line on stdout


def test_no_other_program_can_take_the_port_of_a_dead_process(serve, until):
    """The process restarts on its port, while the other one continues to serve."""
    two = serve("--processes", "2", leash=False)
    _, second = ports_of(two)
    killed = pid_at(two, second)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_gone(killed), "its end")
        with pytest.raises(OSError, match="Address already in use"):
            thief.bind(("127.0.0.1", second))
    until(lambda: pid_at(two, second) != killed, "another process")
    assert ports_of(two) == [two.port, second]
    assert two.stop() == (0, "")


def test_settings_refused_by_one_process_end_all_at_once(tmp_path, free_port):
    """The first and the second process want the same port, which only they can detect."""
    port = free_port()
    options = ("--bind", f"127.0.0.1:{port}", "--data-port", str(port), "--processes", "2")
    ended = subprocess.run(
        [sys.executable, "-m", "reducer", "serve", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (ended.returncode, ended.stdout) == (3, "")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "will be restarted" not in ended.stderr


# ---- the end ----


def test_sigterm_ends_them_all(three):
    children = children_of(three.pid)
    assert len(children) == 3
    assert three.stop() == (0, "")
    assert all(is_gone(pid) for pid in children)


def test_a_service_manager_that_signals_every_process(three):
    """This is systemd's default. The second signal that each process gets must not end it immediately."""
    children = children_of(three.pid)
    three.is_over = True
    for pid in (three.pid, *children):
        os.kill(pid, signal.SIGTERM)
    assert three.end() == (0, "")
    assert three.log.text.count("stopping drained") == 3
    assert all(is_gone(pid) for pid in children)


def test_a_signal_to_one_process_drains_all(three):
    children = children_of(three.pid)
    os.kill(children[1], signal.SIGTERM)
    assert three.end() == (0, "")
    assert all(is_gone(pid) for pid in children)


def test_no_process_outlives_its_parent(serve, until):
    three = serve("--processes", "3")
    children = children_of(three.pid)
    three.kill()
    until(lambda: all(is_gone(pid) for pid in children), "the end of the processes")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_parent_that_ends_while_they_drain(fresh_ranks, serve, job, until, end):
    """Draining takes as long as the job, which has no other reducer, or half a minute."""
    two = serve("--processes", "2", leash=False)
    call = fresh_ranks().begin(2, hold, [two.address], job, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    children = children_of(two.pid)
    two.process.terminate()
    until(lambda: two.log.text.count("draining timeout=30s") == 3, "all to drain")
    os.kill(two.pid, end)
    assert two.end()[0] == (-9 if end == signal.SIGKILL else 130)
    until(lambda: all(is_gone(pid) for pid in children), "the end of the processes")


def test_the_drain_timeout_covers_all_processes(fresh_ranks, serve, job):
    two = serve("--processes", "2", "--drain-timeout", "0.5", leash=False)
    call = fresh_ranks().begin(2, hold, [two.address], job, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    children = children_of(two.pid)
    assert two.stop(4.0) == (0, "")
    assert (
        "stopping with jobs left" in two.log.text
    )  # from one process: the first to drain may have moved the job to the other
    assert all(is_gone(pid) for pid in children)


def test_exit_after_job_survives_a_process_that_dies_after_the_job(ranks, serve, job):
    """The restarted process has never had a job, but the others know of one."""
    two = serve("--processes", "2", "--exit-after-job", "3", leash=False)
    call = ranks.begin(2, hold, [two.address], job, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    first = pid_at(two, two.port)
    call.tell(0, "done")
    call.tell(1, "done")
    call.answers()
    os.kill(first, signal.SIGKILL)
    assert two.end(40) == (0, "")
    assert "process 0 ended and will be restarted" in two.log.text
    assert "no job for 3 s (--exit-after-job)" in two.log.text


# ---- the parent process ----


def test_the_parent_loads_nothing_that_only_serving_needs(serve):
    reducer = serve("--processes", "2", before=lambda: None)  # runs the real command
    maps = Path(f"/proc/{reducer.pid}/maps").read_text()
    assert not [name for name in ("cygrpc", "_upb", "numpy", "uvloop") if name in maps]
    assert "cygrpc" in Path(f"/proc/{children_of(reducer.pid)[0]}/maps").read_text()


def test_a_single_process_has_a_parent_only_on_a_platform(serve, until, free_port):
    """A container of Vertex AI must survive the crash of any process, whatever --processes is."""
    assert children_of(serve("--processes", "1").pid) == []
    port = free_port()
    spec = f'{{"cluster": {{"workerpool2": ["r-0:{port}"]}}, "task": {{"type": "workerpool2", "index": 0}}}}'
    process = subprocess.Popen(
        [sys.executable, "-m", "reducer", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(CLUSTER_SPEC=spec, REDUCER_INSECURE="1", REDUCER_PROCESSES="1"),
    )
    try:
        assert wait_until_ready(process, START_S) == f"0.0.0.0:{port}"
        [child] = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: children_of(process.pid) not in ([], [child]), "another process")
        until(lambda: answers(f"127.0.0.1:{port}"), "it to serve", START_S)
        process.terminate()
        output, log = process.communicate(timeout=START_S)
    finally:
        process.kill()
    assert (process.returncode, output) == (0, "")
    assert f"--bind 0.0.0.0:{port}, because CLUSTER_SPEC says that this is reducer 0 of 1" in log


def answers(address: str) -> bool:
    try:
        return bool(status_of(address))
    except subprocess.CalledProcessError:
        return False


def test_all_ports_are_in_the_range(serve, free_ports, until):
    first = free_ports(9)
    reducer = serve(
        *("--processes", "3", "--metrics-port", "0", "--port-range", f"{first}-{first + 8}"),
        leash=False,
    )
    assert reducer.address == f"127.0.0.1:{first}"
    assert ports_of(reducer) == [first, first + 2, first + 4]
    pids = [pid_at(reducer, port) for port in ports_of(reducer)]
    assert [listened_by(pid) for pid in pids] == [
        {first, first + 1, first + 8},
        {first + 2, first + 3},
        {first + 4, first + 5},
    ]
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: pid_at(reducer, first + 2) != pids[1], "another process")
    assert listened_by(pid_at(reducer, first + 2)) == {first + 2, first + 3}
    assert reducer.stop() == (0, "")


def listened_by(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens, from /proc; gRPC's sockets are in the IPv6 table."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link.removeprefix("socket:[")[:-1] for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
