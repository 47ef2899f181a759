"""`reducer doctor` against real reducers on loopback: each fault is found, named, and has its own exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.network.certificates import Authority
from support.processes.children import environment
from support.processes.doctors import Doctors
from support.processes.reducers import status_of
from support.processes.warm import warm
from support.training.checked import train_until_told

from benchmarks.lab.hosts import LOOPBACK
from reducer.observe.status import StatusAccess, fetch

OURS, THEIRS = "0urs" * 8, "the1rs" * 6
#: Skips the bandwidth measurement where a test is about something else.
QUICK = ("--no-rates", "--timeout", "3")


def doctor(*arguments: str, **more: str) -> tuple[int, str]:
    """Return the exit code, and the output with all whitespace collapsed; lines have at most 80 columns."""
    command = [warm("reducer"), "-m", "reducer", "doctor", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment(**more), check=False
    )
    assert max(map(len, done.stdout.splitlines()), default=0) <= 80
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def document(*arguments: str) -> dict:
    command = [warm("reducer"), "-m", "reducer", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    return json.loads(done.stdout)


def options(files) -> tuple[str, ...]:
    return "--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca


def fix_first(output: str) -> str:
    return output.partition("fix first: ")[2]


# ---- healthy setups ----


def test_all_processes_are_seen_and_measured(serve):
    reducer = serve("--processes", "2")
    found = document(reducer.address, "--parameters", "1M", "--workers", "4")
    assert not [finding for finding in found["findings"] if finding["level"] == "broken"]
    [worker] = found["facts"]["workers"]
    assert [process["given"] for process in worker["reducers"]] == [reducer.address] * 2
    assert {process["plane"] for process in worker["reducers"]} == {"tcp"}
    assert {process["path"]["interface"] for process in worker["reducers"]} == {"lo"}
    [rate] = found["facts"]["alone"]
    assert rate["bytes_per_s"] > 1e6
    assert found["forecast"]["training"]["workers"] == 4
    assert found["forecast"]["now"] is None  # one host cannot measure for all four workers
    # The doctor has left nothing behind.
    assert status_of(reducer.address)["jobs"] == []


def test_saved_measurements_can_be_judged_later(serve, tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(document(serve().address, *QUICK)))
    code, output = doctor("--facts", str(path), "--parameters", "1M")
    assert "1 of 1 processes can be used" in output
    assert code in (0, 1)
    path.write_text('{"workers": [{"rank": "x"}]}')
    code, output = doctor("--facts", str(path))
    assert code == 2
    assert "this is not the doctor's Facts" in output


def test_the_variable_names_the_reducers(serve):
    code, output = doctor(*QUICK, REDUCTION_REDUCERS=serve().address)
    assert code in (0, 1)
    assert "of REDUCTION_REDUCERS" in output


def test_tls_and_tokens_work(serve, tmp_path):
    authority, tokens = Authority(tmp_path), tmp_path / "tokens"
    tokens.write_text(f"*:{OURS}\n")
    tokens.chmod(0o600)
    served, worker = authority.files("127.0.0.1"), authority.files()
    reducer = serve(*options(served), "--token-file", str(tokens))
    found = document(reducer.address, *options(worker), "--token-file", str(tokens))
    [process] = found["facts"]["workers"][0]["reducers"]
    assert (process["trouble"], process["plane"]) == ("", "tcp with TLS")
    assert found["facts"]["alone"][0]["bytes_per_s"] > 1e6


# ---- faults ----


def test_nothing_listens(free_port):
    code, output = doctor(f"127.0.0.1:{free_port()}", *QUICK)
    assert code == 2
    assert "nothing listens on port" in output
    assert "start it, or correct the address" in fix_first(output)


def test_a_wrong_token(serve, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for path, token in ((theirs, THEIRS), (ours, OURS)):
        path.write_text(f"*:{token}\n")
        path.chmod(0o600)
    code, output = doctor(serve("--token-file", str(theirs)).address, "--token-file", str(ours), *QUICK)
    assert code == 2
    assert "give both sides the same token" in fix_first(output)
    assert OURS not in output
    assert THEIRS not in output


@pytest.mark.parametrize("whose", ["the reducer's", "ours"])
def test_an_expired_certificate(serve, tmp_path, whose):
    authority = Authority(tmp_path)
    served = authority.files("127.0.0.1", is_expired=whose == "the reducer's")
    worker = authority.files(is_expired=whose == "ours")
    code, output = doctor(serve(*options(served)).address, *options(worker), *QUICK)
    assert code == 2
    assert re.search(r"expired on \d{4}-\d\d-\d\d", output)
    assert "renew" in fix_first(output)


def test_no_certificate_for_a_reducer_with_tls(serve, tmp_path):
    code, output = doctor(serve(*options(Authority(tmp_path).files("127.0.0.1"))).address, *QUICK)
    assert code == 2
    assert "it requires TLS" in output


def test_a_closed_data_port(faulty_reducer, detour):
    way = detour(faulty_reducer())
    way.data.cut()
    code, output = doctor(way.address, *QUICK)
    assert code == 1
    assert re.search(r"data port \d+: .* frames go over gRPC", output)
    assert "open this port" in fix_first(output)
    # torchrun treats every nonzero exit code as a failure and prints a traceback for it.
    for variables, expected in (({}, 1), ({"TORCHELASTIC_RUN_ID": "x"}, 0)):
        code, output, _ = Doctors([LOOPBACK], [way.address], "--no-rates", **variables).answer()
        assert code == expected
        assert "it works, but slowly" in output


def test_a_stopped_reducer(serve, stopped):
    running, hanging = serve(), serve()
    stopped(hanging.pid)
    code, output = doctor(running.address, hanging.address, *QUICK)
    assert code == 2
    assert f"{hanging.address} from" in fix_first(output)
    assert "accepts connections, but the process has not answered" in output
    assert "1 of 2 processes can be used" in output


def test_a_reducer_that_stops_while_it_is_measured(serve, stopped, until):
    reducer = serve()
    command = [warm("reducer"), "-m", "reducer", "doctor", reducer.address, "--timeout", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as running:
        # The first connection only inspects the reducer.
        until(lambda: reducer.log.text.count("join job=doctor-") == 2, "the measurement", 40.0)
        stopped(reducer.pid)
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 2
    assert "has not answered for 3 s" in " ".join(output.split())


@pytest.fixture
def quota(tmp_path):
    """Return a shell command that puts the shell under a quota of a fifth of a core, removed after the test."""
    for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup"):
        group = Path(root, f"reduction-test-{tmp_path.name}")
        limits = {"cpu.cfs_quota_us": "20000", "cpu.max": "20000 100000"}
        try:
            group.mkdir()
            [limit] = [name for name in limits if (group / name).exists()]
            (group / limit).write_text(limits[limit])
            (group / "cgroup.procs").write_text(str(os.getpid()))
            Path(root, "cgroup.procs").write_text(str(os.getpid()))
        except (OSError, ValueError):
            if group.is_dir():
                group.rmdir()
            continue
        yield f"echo $$ > {group}/cgroup.procs"
        group.rmdir()
        return
    pytest.skip("no CPU quota can be set here: that needs root, and cgroups that may be written")


def test_a_cpu_quota(serve, quota):
    reducer = serve()
    words = shlex.join([sys.executable, "-m", "reducer", "doctor", reducer.address, *QUICK])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{quota} && exec {words}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    output = " ".join(done.stdout.split())
    assert "its cgroup allows 0.2 of" in output, done.stdout + done.stderr
    assert "raise the CPU limit of the container" in fix_first(output)
    assert done.returncode == 1


# ---- other users' jobs ----


def test_a_live_job_is_not_disturbed(ranks, serve, job):
    reducer = serve()
    call = ranks.begin(2, train_until_told, [reducer.address], job, {})
    steps = call.hear(0)
    code, output = doctor(reducer.address)
    assert code in (0, 1)  # other programs may keep the cores busy
    assert f"nothing was measured: job '{job}' is running there; --anyway" in output
    # The job checks its sums at each step, also during the measurement.
    code, output = doctor(reducer.address, "--anyway")
    assert code in (0, 1)
    assert "each way" in output
    while call.hear(0) < steps + 5:
        pass
    call.tell(0, 1)


# ---- all ranks ----


@pytest.mark.timeout(200)
def test_a_rank_that_is_stopped_is_named(serve):
    doctors = Doctors([LOOPBACK] * 2, [serve().address], "--wait", "10")
    os.kill(doctors.processes[1].pid, signal.SIGSTOP)
    code, output, _ = doctors.answer()
    assert code == 2
    assert "rank 1 has not reached the start within 10 s" in output


@pytest.mark.timeout(200)
@pytest.mark.full
def test_a_rank_that_stops_while_it_is_measured_is_named(serve, until):
    reducer = serve()
    doctors = Doctors([LOOPBACK] * 2, [reducer.address])
    try:
        until(
            lambda: any(
                job.job.startswith("doctor-") and job.world_size == 2 and job.started
                for job in fetch(reducer.address, 10.0, StatusAccess()).jobs
            ),
            "incast",
            90.0,
        )
        os.kill(doctors.processes[1].pid, signal.SIGSTOP)
        code, output, _ = doctors.answer()
    finally:
        doctors.kill()
    assert code == 2
    words = " ".join(output.split())
    assert re.search(r"BROKEN bandwidth: measuring failed: .*rank 1 \(", words), output


@pytest.mark.timeout(200)
def test_ranks_that_find_different_reducers(serve):
    one, other = serve().address, serve().address
    doctors = Doctors([LOOPBACK] * 2, ([one], [other]), "--no-rates")
    code, output, _ = doctors.answer()
    assert code == 2
    assert "BROKEN addresses: rank 1" in " ".join(output.split())
