"""The launch of a reducer process: our code by its path, and the user's folders last or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import reduction
from reduction.process.launch import VARIABLE, io_process_command, reducer_command, start_reducer

SHARED = str(Path(reduction.__file__).parents[1])


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


def started_with(folder="/opt/ours"):
    """Return the folders for the end of the process's search path."""
    command, environment = reducer_command(folder)
    assert command == [sys.executable, "-P", f"{folder}/reducer/__main__.py"]
    assert "PYTHONPATH" not in environment
    return environment[VARIABLE].split(os.pathsep)


def test_by_default_only_our_folders_are_passed_once_and_as_absolute_paths(tmp_path):
    assert started_with() == [SHARED, "/opt/ours"]
    assert started_with(SHARED) == [SHARED]
    command, environment = reducer_command("..")
    assert command[2] == f"{tmp_path}/reducer/__main__.py"
    assert environment[VARIABLE].endswith(f"{os.pathsep}{tmp_path}")


def test_an_io_process_is_started_the_same_way_and_leaves_its_torch_unchanged(monkeypatch):
    monkeypatch.setenv("REDUCTION_AUTO", "ddp")
    monkeypatch.setenv("REDUCER_BIND", "kept: it is not a setting of this process")
    command, environment = io_process_command("/opt/ours")
    assert command == [sys.executable, "-P", "/opt/ours/worker_plugin/io_process/__main__.py"]
    assert environment[VARIABLE].split(os.pathsep) == [SHARED, "/opt/ours"]
    assert "REDUCTION_AUTO" not in environment
    assert "REDUCER_BIND" in environment


def test_operator_variables_reach_only_the_process_that_replaces_theirs(monkeypatch):
    of_operator = {
        "REDUCER_BIND": "10.0.0.5:1",
        "REDUCER_METRICS_PORT": "9102",
        "NOTIFY_SOCKET": "/run/notify",
    }
    for name, value in (of_operator | {"REDUCTION_JOB": "kept"}).items():
        monkeypatch.setenv(name, value)
    _, environment = reducer_command("/opt/ours")
    assert not of_operator.keys() & environment.keys()
    assert environment["REDUCTION_JOB"] == "kept"
    _, environment = reducer_command("/opt/ours", with_settings=True)
    assert environment.items() >= of_operator.items()


def test_user_folders_come_last_and_the_working_directory_is_left_out(monkeypatch, tmp_path):
    entries = [
        "",
        ".",
        "../there",
        "/elsewhere",
        str(tmp_path / "here"),
        str(tmp_path / "link"),
        "/elsewhere",
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    assert started_with() == [SHARED, "/opt/ours", str(tmp_path / "there"), "/elsewhere"]


def test_a_process_started_this_way_passes_on_its_folders(monkeypatch):
    monkeypatch.setenv(VARIABLE, os.pathsep.join(["/opt/ours", "/elsewhere"]))
    assert started_with() == [SHARED, "/opt/ours", "/elsewhere"]


def test_the_rest_of_the_environment_stays(monkeypatch):
    monkeypatch.setenv("SOMETHING", "else")
    _, environment = reducer_command("/opt/ours")
    assert environment == {name: value for name, value in os.environ.items()} | {
        VARIABLE: environment[VARIABLE]
    }


def test_a_reducer_on_a_leash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stdin is a pipe, and its token is in no command line."""
    seen: dict[str, object] = {}

    def popen(command: list[str], **options: object) -> str:
        seen.update(options, command=command)
        path = command[command.index("--token-file") + 1]
        assert options["pass_fds"] == (int(path.removeprefix("/dev/fd/")),)
        seen["token"] = Path(path).read_text()
        return "the process"

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert start_reducer("/package", ["--bind", "127.0.0.1:0"], "a secret") == "the process"
    command = seen["command"]
    assert isinstance(command, list)
    assert command[3:7] == ["serve", "--bind", "127.0.0.1:0", "--stop-with-stdin"]
    assert seen["stdin"] == seen["stdout"] == subprocess.PIPE
    assert seen["start_new_session"] is True
    assert "a secret" not in command
    assert seen["token"] == "*:a secret\n"


def test_a_reducer_gets_its_token_even_from_a_process_without_standard_streams() -> None:
    """The process's pipes would get the numbers of the child's standard streams."""
    code = """
import os, subprocess, sys
from reduction.process import launch
launch.reducer_command = lambda folder: ([sys.executable, "-S", "-c", sys.argv[1], "--token-file"], {})
for number in (0, 1, 2):
    os.close(number)
process = launch.start_reducer("", ["--"], "a secret")
said = process.stdout.read()
process.wait()
os._exit(0 if said == "*:a secret\\n" else 1)
"""
    child = "import sys; print(open(sys.argv[-1]).read(), end='')"
    environment = {**os.environ, "PYTHONPATH": SHARED}
    assert subprocess.run([sys.executable, "-c", code, child], env=environment, timeout=60).returncode == 0
