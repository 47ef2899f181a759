"""Processes that we start run only our code and installed packages, whatever is in the user's folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import reduction
from reduction.process.launch import VARIABLE
from reduction.process.ready import wait_until_ready
from support.processes.children import START_S, children_of, environment
from support.processes.reducers import status_of
from support.processes.warm import warm

import reducer

#: Modules that a reducer imports. A file of that name in the user's folder leaves a trace if it runs.
NAMES = ("reducer", "click", "reduction", "grpc", "logging", "sitecustomize")
POISON = """
import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()
raise ImportError("somebody else's code")
"""
EMBEDDED = """
import os, sys
import torch
import torch.distributed as dist
from worker_plugin import ReductionState

os.chdir(sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[2]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with ReductionState(join_timeout_s=60) as state:
    tensor = torch.arange(3.0)
    state.all_reduce(tensor).wait()
    assert state._communicator._meeting_points[0].embedded is not None
    print(tensor.tolist())
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "users"
    path.mkdir()
    for name in NAMES:
        (path / f"{name}.py").write_text(POISON)
    yield path
    assert not list(path.glob("*.ran"))


@pytest.fixture(params=["", ":", ".", "{folder}", "{folder}:/nowhere", "::{folder}/."])
def python_path(request, folder):
    return request.param.format(folder=folder).replace(":", os.pathsep)


def test_the_embedded_reducer(folder, python_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(EMBEDDED)
    ended = subprocess.run(
        [warm(), str(script), str(folder), python_path],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
    )
    assert (ended.returncode, ended.stdout) == (0, "[0.0, 1.0, 2.0]\n"), ended.stderr[-3000:]


def test_two_processes(folder, python_path):
    """The parent is started by its path, like its children, in the user's folder and with that in PYTHONPATH."""
    main = Path(reducer.__file__).with_name("__main__.py")
    command = [sys.executable, "-P", str(main), "serve", "--bind", "127.0.0.1:0", "--workers", "2"]
    # sitecustomize runs before any of our code can; the processes that we start run without it.
    (folder / "sitecustomize.py").unlink()
    (folder / "logging.py").unlink()
    path = os.pathsep.join([python_path, os.environ.get("PYTHONPATH", "")])
    first = subprocess.Popen(
        [*command, "--stop-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(PYTHONPATH=path),
    )
    try:
        [port] = status_of(wait_until_ready(first, START_S))["siblings"]
        assert status_of(f"127.0.0.1:{port}")["siblings"] == []
        commands = [
            Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children_of(first.pid)
        ]
        assert [command[1:4] for command in commands] == [[b"-P", bytes(main), b"serve"]] * 2
    finally:
        first.stdin.close()
        first.wait(30)
        first.stdout.close()
    assert first.returncode == 0


@pytest.mark.parametrize("variable", ["PYTHONPATH", VARIABLE])
def test_packages_that_only_a_variable_names_are_found(folder, variable):
    """With -S the interpreter does not search site-packages."""
    (folder / "sitecustomize.py").unlink()
    (folder / "logging.py").unlink()
    installed = dict.fromkeys(str(Path(package.__file__).parents[1]) for package in (click, reduction))
    main = Path(reducer.__file__).with_name("__main__.py")
    ended = subprocess.run(
        [sys.executable, "-S", "-P", str(main), "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=folder,
        env=environment() | {"PYTHONPATH": ""} | {variable: os.pathsep.join(["", *installed])},
    )
    assert ended.stdout == f"reducer, version {reduction.__version__}\n", ended.stderr
