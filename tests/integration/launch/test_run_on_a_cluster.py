"""`reducer run` as the same command on four hosts of a cluster, with four launchers on loopback addresses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.torchrun import torchrun

SCRIPT = str(Path(__file__).with_name("train_plain.py"))
RUN = [sys.executable, "-m", "reducer", "run"]
WORKERS, REDUCERS = ("127.0.1.1", "127.0.1.2"), ("127.0.1.3", "127.0.1.4")


class Launcher:
    """One `reducer run`."""

    def __init__(self, host: str, log: Path, command: list[str], variables: dict[str, str]) -> None:
        self.host = host
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*RUN, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(**variables),
            )

    def wait(self, timeout_s: float = 100.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logs = "\n".join(
                f"{log.name}: {log.read_text()}" for log in sorted(self.log.parent.glob("*.log"))
            )
            pytest.fail(f"{self.host} is not done:\n{logs}")

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


Start = Callable[[str, list[str], dict[str, str]], Launcher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Launcher] = []

    def one(host: str, command: list[str], variables: dict[str, str]) -> Launcher:
        started.append(Launcher(host, tmp_path / f"{host}.log", command, variables))
        return started[-1]

    yield one
    for launcher in started:
        launcher.process.kill()
        launcher.process.wait()


def vertex(host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the settings of Vertex AI: all replicas have this port, and the platform counts reducers as ranks."""
    pools = {"workerpool0": WORKERS[:1], "workerpool1": WORKERS[1:], "workerpool2": REDUCERS}
    [(pool, index)] = [(pool, hosts.index(host)) for pool, hosts in pools.items() if host in hosts]
    document = {
        "cluster": {pool: [f"{each}:{port}" for each in hosts] for pool, hosts in pools.items()},
        "environment": "cloud",
        "task": {"type": pool, "index": index},
    }
    rank = str((*WORKERS, *REDUCERS).index(host))
    platform = {"WORLD_SIZE": "4", "RANK": rank, "MASTER_ADDR": WORKERS[0], "MASTER_PORT": str(port)}
    # On Vertex AI a reducer binds to all addresses of its container.
    return [], platform | {"CLUSTER_SPEC": json.dumps(document), "REDUCER_BIND": f"{host}:{port}"}


def sagemaker(host: str, port: int) -> tuple[list[str], dict[str, str]]:
    groups = {"gpu": list(WORKERS[::-1]), "reducers": list(REDUCERS)}
    document = {
        "current_host": host,
        "current_group_name": "gpu" if host in WORKERS else "reducers",
        "hosts": [*WORKERS, *REDUCERS],
        "instance_groups": [
            {"instance_group_name": name, "instance_type": "ml.c5.large", "hosts": hosts}
            for name, hosts in groups.items()
        ],
    }
    variables = {"SM_RESOURCE_CONFIG": json.dumps(document), "REDUCER_BIND": f"{host}:{port}"}
    return ["--cluster", f"sagemaker:reducers:{port}"], variables


def lists(host: str, port: int) -> tuple[list[str], dict[str, str]]:
    options = ["--hosts", "127.0.1.{1..2}", "--port", str(port), "--host", host]
    return options, {"REDUCER_RUN_REDUCER_HOSTS": ",".join(REDUCERS)}


@pytest.mark.parametrize(
    "platform", [vertex, *(pytest.param(one, marks=pytest.mark.full) for one in (sagemaker, lists))]
)
def test_training_on_four_hosts(
    start: Start,
    free_port: Callable[[], int],
    platform: Callable[[str, int], tuple[list[str], dict[str, str]]],
) -> None:
    port, common = free_port(), ["--master-port", str(free_port()), "--insecure", "--exit-after-job", "1"]
    launchers = []
    for host in (*WORKERS, *REDUCERS):  # the workers have to wait
        options, variables = platform(host, port)
        variables["REDUCER_PROCESSES"] = "1"
        launchers.append(start(host, [*options, *common, "--", *torchrun(1, place=()), SCRIPT], variables))
    for launcher in launchers:
        assert launcher.wait() == 0, launcher.said
    said = [launcher.said for launcher in launchers]
    addresses = [f"{host}:{port}" for host in REDUCERS]
    found = [re.findall(r"rank \d: (\[.*?\]) (\S+)", text) for text in said]
    [(hooks, _)] = {outcome for texts in found for outcome in texts}
    assert hooks == "['reduction_hook']"
    assert [len(texts) for texts in found] == [1, 1, 0, 0]
    assert f"2 ranks, 2 reducers ({', '.join(addresses)}; from REDUCTION_REDUCERS)" in said[0]
    for index, text in enumerate(said[:2]):
        assert f"reducer run: this host is node {index} of 2" in text
        assert "all 2 reducers can be reached" in text
    for index, text in enumerate(said[2:]):
        assert f"reducer run: this host is reducer {index} of 2" in text
        assert "no job for 1 s (--exit-after-job)" in text


def test_workers_log_which_reducers_they_wait_for_and_give_up(
    start: Start, free_port: Callable[[], int]
) -> None:
    port = free_port()
    options, variables = lists(WORKERS[0], port)
    launcher = start(WORKERS[0], [*options, "--wait-for-reducers", "1", "--", "true"], variables)
    assert launcher.wait() == 1
    both = f"{REDUCERS[0]}:{port}, {REDUCERS[1]}:{port}"
    assert f"reducer run: waiting for 2 of 2 reducers: {both}; giving up in 1 s\n" in launcher.said
    assert launcher.said.endswith(
        f"2 of 2 reducers could not be reached within 1 s: {REDUCERS[0]}:{port} (connection refused), "
        f"{REDUCERS[1]}:{port} (connection refused)\n"
    )


def test_a_reducer_without_a_job_gives_up(start: Start, free_port: Callable[[], int]) -> None:
    options, variables = lists(REDUCERS[0], free_port())
    launcher = start(REDUCERS[0], [*options, "--wait-for-job", "0.5", "--", "true"], variables)
    assert launcher.wait() == 5
    assert launcher.said.endswith("reducer: no job came within 0.5 s (--wait-for-job)\n")


def test_codes_and_signals_of_the_command_on_a_worker_host(
    start: Start, free_port: Callable[[], int]
) -> None:
    options = ["--hosts", ",".join(WORKERS), "--host", WORKERS[1], "--no-auto", "--master-port", "4711"]
    variables = "$PET_NNODES $PET_NODE_RANK $PET_MASTER_ADDR $PET_MASTER_PORT $WORLD_SIZE $RANK"
    script = f"trap 'exit 9' TERM; echo ready {variables}; while :; do sleep 0.05; done"
    launcher = start(WORKERS[1], [*options, "sh", "-c", script], {})
    deadline = time.monotonic() + 30
    while "ready" not in launcher.said:
        assert time.monotonic() < deadline, launcher.said
        time.sleep(0.05)
    assert "ready 2 1 127.0.1.1 4711 2 1\n" in launcher.said
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 9


def test_a_reducer_host_drains_on_sigterm(start: Start, free_port: Callable[[], int]) -> None:
    options, variables = lists(REDUCERS[1], free_port())
    launcher = start(REDUCERS[1], [*options, "--", "true"], variables)
    deadline = time.monotonic() + 30
    while "listening on" not in launcher.said:
        assert time.monotonic() < deadline, launcher.said
        time.sleep(0.05)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 0, launcher.said


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (["--cluster", "vertex:"], {}, "reducers 'vertex:': CLUSTER_SPEC is not set"),
        ([], {"CLUSTER_SPEC": "nonsense"}, "CLUSTER_SPEC is not what Vertex AI writes"),
        (
            ["--hosts", "a", "--host", "a", "--reducers", "2"],
            {},
            "--reducers 2 starts reducers on one machine, and --hosts names those of a cluster: leave it out",
        ),
        (["--hosts", "a,b", "--host", "a"], {"PET_NNODES": "3"}, "PET_NNODES is 3, but --hosts has 2 hosts"),
    ],
)
def test_invalid_settings_are_a_one_line_error(
    start: Start, options: list[str], variables: dict[str, str], message: str
) -> None:
    launcher = start("here", [*options, "--", "true"], variables)
    assert launcher.wait() == 2
    [line] = launcher.said.splitlines()
    assert line.startswith(f"reducer run: {message}")
