"""Sources of a job's reducers: files, ranges, platforms, the name service. Rank 0 resolves them for all ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reduction.errors import ConfigError
from support.processes.children import environment
from support.processes.reducers import looked_at
from support.processes.warm import warm

# ---- in the ranks ----


def summed(rank, text, job, folders=None, variables=None):
    """Sum in this rank's own folder and environment; return the addresses to which the rank has links."""
    if folders is not None:
        rank.cleanup.callback(os.chdir, os.getcwd())
        os.chdir(folders[rank.number])
    for name, value in (variables or [{}, {}])[rank.number].items():
        rank.cleanup.callback(os.environ.pop, name)
        os.environ[name] = value
    with rank.state(text, job) as state:
        rank.round(state)
        return sorted(link.address for link in state._communicator._driver._core.roster)


def fails(rank, text, job, **settings):
    with rank.state(text, job, **settings) as state:
        return rank.error_of(state.connect)


# ---- tests ----


def test_a_file_that_only_rank_0_has(fresh_ranks, reducers, job, tmp_path):
    ranks, addresses = fresh_ranks(), reducers(2)
    folders = [tmp_path / "rank-0", tmp_path / "rank-1"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "reducers").write_text("# the night's\n" + "\n".join(addresses) + "\n")
    assert ranks.run(2, summed, "file:reducers", job, folders) == [sorted(addresses)] * 2


def test_ranges(fresh_ranks, serve, free_port, job):
    port = free_port()
    started = [serve(bind=f"127.0.0.{number}:{port}", leash=True).address for number in (8, 9, 10)]
    text = f"127.0.0.{{8..10}}:{port}"
    assert fresh_ranks().run(2, summed, text, job) == [sorted(started)] * 2
    assert [process["address"] for process in looked_at(text)["processes"]] == started


@pytest.mark.parametrize(
    ("arguments", "variables", "source"),
    [
        (True, False, "the argument"),
        (False, True, "REDUCTION_REDUCERS"),
        (False, False, "CLUSTER_SPEC"),
    ],
)
def test_the_line_of_rank_0_names_the_source(fresh_ranks, reducers, job, arguments, variables, source):
    """All three sources name reducers, but only on rank 0; the first one set takes precedence."""
    ranks, [address] = fresh_ranks(), reducers(1)
    wrong = "127.0.0.1:1"
    pool = [wrong if arguments or variables else address]
    first = {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool2": pool}})}
    if arguments or variables:
        first["REDUCTION_REDUCERS"] = wrong if arguments else address
    text = address if arguments else None
    assert ranks.run(2, summed, text, job, None, [first, {}]) == [[address]] * 2
    [line] = ranks.processes[0].log.text.splitlines()
    assert f"1 reducer ({address}; from {source})" in line


def test_an_error_of_rank_0_is_raised_on_all_ranks(fresh_ranks, job):
    errors = fresh_ranks().run(2, fails, "file:/nowhere/reducers", job)
    assert {type(error) for error in errors} == {ConfigError}
    for error in errors:
        assert "reducers 'file:/nowhere/reducers': the file cannot be read" in str(error)


def test_status_accepts_the_same_sources(reducers, tmp_path):
    addresses = reducers(2)
    (tmp_path / "list").write_text("\n".join(addresses))
    processes = looked_at(f"file:{tmp_path}/list")["processes"]
    assert [process["address"] for process in processes] == addresses


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("slrum:1:2", 2, "did you mean 'slurm'?"),
        ("slurm:7:50051", 2, "SLURM_JOB_NODELIST_HET_GROUP_7 is not set"),
        ("dns:nobody.invalid:1?count=2", 4, "'nobody.invalid' has 0 of 2 addresses after 0.1 s"),
    ],
)
def test_status_of_unusable_sources(text, code, message):
    command = [warm("reducer"), "-m", "reducer", "status", "--timeout", "0.1", text]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr


# ---- a real name server ----

#: Runs in its own namespaces, with a name server that answers for `reducers.test`, at first with one of three
#: addresses.
NAME_SERVER = """
import pathlib, signal, subprocess, sys, threading, time
from reduction.discovery import resolve as resolving

folder = pathlib.Path(sys.argv[1])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
(folder / "resolv.conf").write_text("nameserver 127.0.0.1\\n")
subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
hosts = folder / "hosts"
hosts.write_text("10.1.0.3 reducers.test\\n")
options = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--pid-file=", "--conf-file=/dev/null"]
server = subprocess.Popen(["dnsmasq", *options, f"--addn-hosts={hosts}", "--listen-address=127.0.0.1"])

def sleep(seconds):
    # resolve() has seen too few addresses: the others appear, as pods that become ready.
    hosts.write_text("10.1.0.3 reducers.test\\n10.1.0.1 reducers.test\\n10.1.0.2 reducers.test\\n")
    server.send_signal(signal.SIGHUP)
    time.sleep(seconds)

class Clock:
    monotonic, sleep = time.monotonic, staticmethod(sleep)

try:
    print(*resolving.resolve(["dns:reducers.test:1"], 30.0, 30.0).addresses)
    resolving.time = Clock
    print(*resolving.resolve(["dns:reducers.test:1?count=3"], 30.0, 30.0).addresses)
finally:
    server.terminate()
    server.wait()
"""


def may_unshare() -> bool:
    tools = all(map(shutil.which, ("dnsmasq", "unshare", "ip", "mount")))
    return tools and subprocess.run(["unshare", "-mn", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="dnsmasq, or the right to make namespaces, is missing")
def test_a_name_whose_addresses_appear_one_after_another(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "-mn", sys.executable, "-c", NAME_SERVER, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "10.1.0.3:1"
    assert second == "10.1.0.1:1 10.1.0.2:1 10.1.0.3:1"
