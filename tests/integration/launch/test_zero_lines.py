"""REDUCTION_AUTO and `reducer run` with scripts that know nothing of reducers."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.children import children_of, environment, is_gone
from support.processes.reducers import Reducer
from support.processes.torchrun import Torchrun, torchrun

SCRIPT = str(Path(__file__).with_name("train_plain.py"))
REDUCER = [sys.executable, "-m", "reducer"]


def outcome(said: str) -> set[tuple[str, str]]:
    """Return the hooks of the models and their weights, which are the same on all ranks."""
    return set(re.findall(r"rank \d: (\[.*?\]) (\S+)", said))


def trained(folder: Path, *arguments: str, python: str | None = None, **variables: str) -> tuple[int, str]:
    launcher = Torchrun(folder, 2, SCRIPT, *arguments, python=python, **variables)
    return launcher.wait(), launcher.log.read_text()


def trained_through(
    reducer: Reducer, folder: Path, wish: str, *arguments: str, python: str | None = None
) -> str:
    """Return the output of a training that must succeed."""
    variables = {"REDUCTION_AUTO": wish, "REDUCTION_REDUCERS": reducer.address}
    code, said = trained(folder, *arguments, python=python, **variables)
    assert code == 0, said
    return said


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the final weights of the script over Gloo, which are the same for every kind except "two-models"."""
    code, said = trained(tmp_path_factory.mktemp("plain"))
    assert code == 0, said
    [(hooks, plain)] = outcome(said)
    assert hooks == "[None]"
    return plain


def test_a_script_that_knows_nothing_of_reducers(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str
) -> None:
    reducer = serve()
    said = trained_through(reducer, tmp_path, "ddp", python=sys.executable)
    assert outcome(said) == {("['reduction_hook']", weights)}
    assert (
        said.count(
            "REDUCTION_AUTO=ddp: DistributedDataParallel module 1 will average over 2 ranks through reducers"
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
def test_a_module_of_any_class_is_attached_once(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str, kind: str
) -> None:
    reducer = serve()
    said = trained_through(reducer, tmp_path, "ddp", kind)
    assert outcome(said) == {("['reduction_hook']", weights)}
    assert reducer.log.text.count("job ended") == 1


def test_settings_of_attach_are_not_dropped_silently(tmp_path: Path, serve: Callable[..., Reducer]) -> None:
    variables = {"REDUCTION_AUTO": "ddp", "REDUCTION_REDUCERS": serve().address}
    code, said = trained(tmp_path, "attach", "settings", **variables)
    assert code == 1
    assert "ConfigError: this module averages through the reducers already" in said


def test_a_class_that_averages_in_its_own_way_is_left_alone_and_reported(tmp_path: Path) -> None:
    code, said = trained(
        tmp_path, "subclass-with-hook", REDUCTION_AUTO="ddp", REDUCTION_REDUCERS="127.0.0.1:1"
    )
    assert code == 0, said
    assert {hooks for hooks, _ in outcome(said)} == {"['allreduce_hook']"}
    assert "REDUCTION_AUTO=ddp: WithHook module 1 does not use the reducers" in said


def test_a_hook_set_by_the_script_is_refused(tmp_path: Path) -> None:
    code, said = trained(tmp_path, "own-hook", REDUCTION_AUTO="ddp")
    assert code == 1
    assert (
        "ConfigError: REDUCTION_AUTO=ddp has given this module a communication hook, so allreduce_hook"
        in said
    )


@pytest.mark.parametrize("kind", ["no-backend", "own-hook", "by-hand", "subclass-with-hook"])
def test_a_group_is_switched_to_the_backend(
    tmp_path: Path, serve: Callable[..., Reducer], weights: str, kind: str
) -> None:
    reducer = serve()
    said = trained_through(reducer, tmp_path, "group", kind)
    assert {ended for _, ended in outcome(said)} == {weights}
    assert said.count("REDUCTION_AUTO=group: all-reduces of 2 ranks will go through the reducers") == 1
    received = sum(map(int, re.findall(r"job ended .*received_bytes=(\d+)", reducer.log.text)))
    assert received >= 4 * 2 * 4 * (300 * 100 + 100), "four steps, two ranks, float32"


def test_an_unknown_auto_value_is_refused(tmp_path: Path) -> None:
    code, said = trained(tmp_path, REDUCTION_AUTO="dpp")
    assert code == 1
    assert "ConfigError: REDUCTION_AUTO is 'dpp'; this version knows 'ddp', 'group'" in said


def test_a_group_of_the_backend_is_left_alone(tmp_path: Path, serve: Callable[..., Reducer]) -> None:
    said = trained_through(serve(), tmp_path, "ddp", "other-backend")
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
    done = run("--reducers", "2", "--", *torchrun(2), SCRIPT)
    assert done.returncode == 0, done.stderr
    [(hooks, _)] = outcome(done.stdout)
    assert hooks == "['reduction_hook']"
    addresses = re.findall(r"127\.0\.0\.1:\d+", done.stderr.partition("\n")[0])
    assert len(addresses) == 2
    assert re.search(
        r"^reducer run: 1 job of 2 ranks, \d+ collectives, [\d.]+ KiB in, [\d.]+ KiB out"
        r"(, waited at least [\d.]+ s for rank \d)?$",
        done.stderr,
        re.MULTILINE,
    )
    status = subprocess.run([*REDUCER, "status", addresses[0]], capture_output=True, timeout=30)
    assert status.returncode == 4  # the reducer has ended with the command


def test_run_uses_reducers_that_are_named(serve: Callable[..., Reducer]) -> None:
    reducer = serve()
    done = run(
        "--", "sh", "-c", "echo $REDUCTION_REDUCERS $REDUCTION_AUTO", REDUCTION_REDUCERS=reducer.address
    )
    assert done.stdout == f"{reducer.address} ddp\n"
    assert f"REDUCTION_REDUCERS names reducers ({reducer.address}); none is started here" in done.stderr
    assert run("--reducers", "0", "--auto", "group", "sh", "-c", "echo $REDUCTION_AUTO").stdout == "group\n"
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


def begin(*command: str, **variables: str) -> tuple[subprocess.Popen[str], str, str]:
    """Start `reducer run` with a command that prints a line; return the process, its reducer, and that line."""
    process = subprocess.Popen(
        [*REDUCER, "run", *command],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stdout is not None
    address = re.findall(r"127\.0\.0\.1:\d+", process.stderr.readline())[0]
    return process, address, process.stdout.readline()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 9),
        (signal.SIGHUP, 129),
        (signal.SIGINT, 130),
        (signal.SIGQUIT, 131),
        (signal.SIGUSR1, 138),
    ],
)
def test_run_passes_signals_on(number: signal.Signals, code: int) -> None:
    # A shell would not pass on SIGINT, and a core dump is useless.
    script = (
        "import resource, signal, sys, time\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    process, address, _ = begin(sys.executable, "-c", script)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert_gone(address)


def test_terminal_signals_are_not_passed_on_because_the_command_gets_them() -> None:
    """On Ctrl-C the kernel signals all processes of the terminal."""
    # Handlers could interrupt each other, but a wait takes one signal at a time, SIGINT with its lower number first.
    script = (
        "import signal, sys\n"
        "waited = {signal.SIGINT, signal.SIGUSR1}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, waited)\n"
        "print('ready', flush=True)\n"
        "count = 0\n"
        "while signal.sigwait(waited) == signal.SIGINT: count += 1\n"
        "sys.exit(count)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [*REDUCER, "run", "--reducers", "0", sys.executable, "-c", script],
            environment(),
        )
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"^C" not in said:  # the terminal's echo
        said += os.read(terminal, 1000)
    os.kill(pid, signal.SIGUSR1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    os.close(terminal)


def test_the_command_ignores_what_nohup_ignores() -> None:
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "-"]
    command = ["sh", "-c", "kill -HUP $PPID $$; echo there"]
    done = subprocess.run(
        [*ignoring, *REDUCER, "run", "--reducers", "0", *command],
        env=environment(),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"there\n")


def test_nothing_is_left_when_run_is_killed() -> None:
    process, address, said = begin("sh", "-c", "echo $$; exec sleep 60")
    command = int(said)
    process.kill()
    process.communicate(timeout=30)
    assert_gone(address)
    deadline = time.monotonic() + 10
    while not is_gone(command):
        assert time.monotonic() < deadline, "the command is still there"
        time.sleep(0.01)


def test_a_reducer_that_died_is_reported_and_restarted_at_its_address() -> None:
    process, address, _ = begin("sh", "-c", "echo there; exec sleep 60")
    [victim] = [pid for pid in children_of(process.pid) if "serve" in command_of(pid)]
    os.kill(victim, signal.SIGKILL)
    assert process.stderr is not None
    process.stderr.readline()  # the line about the token
    assert (
        process.stderr.readline()
        == f"reducer run: the reducer {address} on this host ended with -9; it will be restarted\n"
    )
    deadline = time.monotonic() + 30
    while not listens(address):
        assert time.monotonic() < deadline, "it is still away"
        time.sleep(0.05)
    [other] = [pid for pid in children_of(process.pid) if "serve" in command_of(pid)]
    while not re.search(r"SigBlk:\s*0+\n", Path(f"/proc/{other}/status").read_text()):
        assert time.monotonic() < deadline, "it hears no signal"
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert_gone(address)


# ---- access to the reducers ----


def test_only_the_command_can_use_the_reducers() -> None:
    process, address, said = begin(
        "sh", "-c", "echo $REDUCTION_TOKEN_FILE; exec sleep 60", REDUCTION_TOKEN_FILE="/a"
    )
    path = Path(said.strip())
    assert path.stat().st_mode & 0o777 == 0o600
    [job, token] = path.read_text().strip().split(":")
    assert job == "*"
    assert len(token) >= 32
    commands = [command_of(pid) for pid in (process.pid, *children_of(process.pid))]
    assert not [command for command in commands if token in command]
    for method in ("status", "drain"):
        refused = subprocess.run([*REDUCER, method, address], capture_output=True, text=True, timeout=30)
        assert refused.returncode
        assert "shows no token" in refused.stdout + refused.stderr
    allowed = [*REDUCER, "status", address, "--token-file", str(path)]
    assert subprocess.run(allowed, capture_output=True, timeout=30).returncode == 0
    process.terminate()
    process.communicate(timeout=30)
    assert not path.exists()


def assert_gone(address: str) -> None:
    deadline = time.monotonic() + 10
    while listens(address):
        assert time.monotonic() < deadline, f"the reducer {address} is still there"
        time.sleep(0.1)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
