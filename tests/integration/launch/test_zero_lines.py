"""REDUCTION_AUTO and `reducer run`: scripts that know nothing of reducers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.reducers import Reducer
from support.processes.torchrun import Torchrun

SCRIPT = str(Path(__file__).with_name("train_plain.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
REDUCER = [sys.executable, "-m", "reducer"]


def outcome(said: str) -> set[tuple[str, str]]:
    """Return which hooks the models had, and their weights; the same on all ranks."""
    return set(re.findall(r"rank \d: (\[.*?\]) (\S+)", said))


def trained(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    launcher = Torchrun(folder, 2, SCRIPT, *arguments, **variables)
    return launcher.wait(), launcher.log.read_text()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that the script ends with over Gloo, whatever its kind, but for those with two models."""
    code, said = trained(tmp_path_factory.mktemp("plain"))
    assert code == 0, said
    [(hooks, plain)] = outcome(said)
    assert hooks == "[None]"
    return plain


def test_a_script_that_knows_nothing_of_reducers(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str
) -> None:
    reducer = serve()
    code, said = trained(tmp_path, REDUCTION_AUTO="ddp", REDUCTION_REDUCERS=reducer.address)
    assert code == 0, said
    assert outcome(said) == {("['reduction_hook']", weights)}
    assert (
        said.count(
            "REDUCTION_AUTO=ddp: DistributedDataParallel module 1 will average over 2 ranks by reducers"
        )
        == 1
    )
    assert "job ended" in reducer.log.text


def test_two_models_under_one_job_name(tmp_path: Path, serve: Callable[..., Reducer]) -> None:
    reducer = serve()
    variables = {"REDUCTION_AUTO": "ddp", "REDUCTION_REDUCERS": reducer.address, "REDUCTION_JOB": "night"}
    code, said = trained(tmp_path, "two-models", **variables)
    assert code == 0, said
    assert {hooks for hooks, _ in outcome(said)} == {"['reduction_hook', 'reduction_hook']"}
    assert "job=night " in reducer.log.text
    assert "job=night-2 " in reducer.log.text


@pytest.mark.parametrize("kind", ["subclass", "attach"])
def test_a_module_is_attached_whatever_class_it_has_and_once(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str, kind: str
) -> None:
    reducer = serve()
    code, said = trained(tmp_path, kind, REDUCTION_AUTO="ddp", REDUCTION_REDUCERS=reducer.address)
    assert code == 0, said
    assert outcome(said) == {("['reduction_hook']", weights)}
    assert reducer.log.text.count("job ended") == 1


def test_settings_of_attach_are_not_dropped_silently(tmp_path: Path, serve: Callable[..., Reducer]) -> None:
    variables = {"REDUCTION_AUTO": "ddp", "REDUCTION_REDUCERS": serve().address}
    code, said = trained(tmp_path, "attach", "settings", **variables)
    assert code == 1
    assert "ConfigError: this module averages through the reducers already" in said


def test_a_class_that_averages_in_its_own_way_is_left_alone_and_said_to_be(tmp_path: Path) -> None:
    code, said = trained(
        tmp_path, "subclass-with-hook", REDUCTION_AUTO="ddp", REDUCTION_REDUCERS="127.0.0.1:1"
    )
    assert code == 0, said
    assert {hooks for hooks, _ in outcome(said)} == {"['allreduce_hook']"}
    assert "REDUCTION_AUTO=ddp: WithHook module 1 does not use the reducers" in said


def test_a_hook_of_the_scripts_own_is_refused(tmp_path: Path) -> None:
    code, said = trained(tmp_path, "own-hook", REDUCTION_AUTO="ddp")
    assert code == 1
    assert (
        "ConfigError: REDUCTION_AUTO=ddp has given this module a communication hook, so allreduce_hook"
        in said
    )


@pytest.mark.parametrize("kind", ["no-backend", "own-hook", "by-hand", "subclass-with-hook"])
def test_a_group_becomes_one_of_the_backend(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str, kind: str
) -> None:
    reducer = serve()
    code, said = trained(tmp_path, kind, REDUCTION_AUTO="group", REDUCTION_REDUCERS=reducer.address)
    assert code == 0, said
    assert {ended for _, ended in outcome(said)} == {weights}
    assert said.count("REDUCTION_AUTO=group: all-reduces of 2 ranks will go through the reducers") == 1
    received = sum(map(int, re.findall(r"job ended .*received_bytes=(\d+)", reducer.log.text)))
    assert received >= 4 * 2 * 4 * (300 * 100 + 100), "four steps, two ranks, float32"


def test_an_unknown_wish_is_refused(tmp_path: Path) -> None:
    code, said = trained(tmp_path, REDUCTION_AUTO="dpp")
    assert code == 1
    assert "ConfigError: REDUCTION_AUTO is 'dpp'; this version knows 'ddp', 'group'" in said


def test_a_group_of_the_backend_is_left_alone(tmp_path: Path, serve: Callable[..., Reducer]) -> None:
    code, said = trained(tmp_path, "other-backend", REDUCTION_AUTO="ddp", REDUCTION_REDUCERS=serve().address)
    assert code == 0, said
    assert {hooks for hooks, _ in outcome(said)} == {"[None]"}


@pytest.mark.parametrize("broken", ["an error", "not there"])
def test_import_torch_survives_a_broken_plug_in(tmp_path: Path, broken: str) -> None:
    if broken == "an error":
        package = tmp_path / "worker_plugin"
        package.mkdir()
        (package / "__init__.py").write_text("raise RuntimeError('broken')\n")
    else:
        (tmp_path / "worker_plugin.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.ones(2).sum().item())"],
        cwd=tmp_path,  # where `python -c` looks first
        env=environment(REDUCTION_AUTO="ddp"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert "reduction-server: REDUCTION_AUTO=ddp has no effect: " in done.stderr
    assert "hides the package 'worker_plugin'" in done.stderr


# ---- reducer run ----


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REDUCER, "run", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_run_starts_reducers_for_a_script(tmp_path: Path) -> None:
    done = run("--reducers", "2", "--", *TORCHRUN, SCRIPT)
    assert done.returncode == 0, done.stderr
    [(hooks, _)] = outcome(done.stdout)
    assert hooks == "['reduction_hook']"
    addresses = re.findall(r"127\.0\.0\.1:\d+", done.stderr.partition("\n")[0])
    assert len(addresses) == 2
    status = subprocess.run([*REDUCER, "status", addresses[0]], capture_output=True, timeout=30)
    assert status.returncode == 4  # it has ended with the command


def test_run_uses_reducers_that_are_named(serve: Callable[..., Reducer]) -> None:
    reducer = serve()
    done = run(
        "--", "sh", "-c", "echo $REDUCTION_REDUCERS $REDUCTION_AUTO", REDUCTION_REDUCERS=reducer.address
    )
    assert done.stdout == f"{reducer.address} ddp\n"
    assert f"REDUCTION_REDUCERS names reducers ({reducer.address}); none is started here" in done.stderr
    set_by_run = run("--no-auto", "--reducers", "0", "env").stdout.replace("REDUCTION_RUN=tests-", "")
    assert set_by_run.count("REDUCTION_") == 0


def test_run_ends_as_its_command_does(tmp_path: Path) -> None:
    assert run("--reducers", "0", "sh", "-c", "exit 7").returncode == 7
    assert run("--reducers", "0", "sh", "-c", "kill -9 $$").returncode == 137
    missing = run("--reducers", "0", "no-such-command")
    assert missing.returncode == 127
    assert missing.stderr == "reducer run: no-such-command: No such file or directory\n"
    (tmp_path / "not-executable").write_text("")
    assert run("--reducers", "0", str(tmp_path / "not-executable")).returncode == 126
    assert run("--reducers", "99", "true").returncode == 2
    assert run().returncode == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGHUP, 129)])
def test_run_passes_signals_on(number: signal.Signals, code: int) -> None:
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*REDUCER, "run", "sh", "-c", script],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    assert_gone(stderr.decode())


def test_reducers_end_when_run_is_killed() -> None:
    process = subprocess.Popen(
        [*REDUCER, "run", "sh", "-c", "echo ready; sleep 30"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait(10)
    assert_gone(said)
    os.killpg(process.pid, signal.SIGKILL)  # the command, which nobody told
    process.communicate()


def assert_gone(said: str) -> None:
    address = re.findall(r"127\.0\.0\.1:\d+", said)[0]
    deadline = time.monotonic() + 10
    while subprocess.run([*REDUCER, "status", address], capture_output=True, timeout=30).returncode != 4:
        assert time.monotonic() < deadline, f"the reducer {address} is still there"
        time.sleep(0.1)
