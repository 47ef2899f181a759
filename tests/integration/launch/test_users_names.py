"""User files with the names of our packages: `import torch` works, and users of our code get the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.children import environment

OURS = ("reduction", "reducer", "worker_plugin", "reduction_server")
#: Packages that a worker does not import.
NOT_IN_WORKERS = ("reducer", "reduction_server")
LIMIT_S = 90
SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.tensor([3.0, 4.0])).backward()
print(model.module.weight.grad.tolist())
try:
    dist.all_reduce(torch.ones(1), group=dist.new_group(backend="reduction"))
    print("summed")
except ImportError as error:
    print(error)
dist.destroy_process_group()
"""
POISON = "print('somebody ran this'); raise SystemExit(3)"


def beside(script: Path, name: str, kind: str) -> Path:
    """Put a foreign module next to a script; return its file."""
    file = script.with_name(f"{name}.py") if kind == "file" else script.parent / name / "__init__.py"
    file.parent.mkdir(exist_ok=True)
    if kind == "folder":
        file.with_name("notes.py").write_text(POISON)
    else:
        file.write_text(POISON)
    return file


def run(script: Path, text: str, **more: str) -> tuple[str, str]:
    """Run a script; return its stdout and stderr."""
    script.write_text(text)
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=script.parent,
        env=environment(**more),
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout, ended.stderr


def each_alone() -> list[object]:
    """Return all kinds of all names one at a time; they take minutes, and other cases cover them together."""
    return [
        pytest.param((name,), kind, marks=pytest.mark.full, id=f"{name}-{kind}")
        for name in OURS
        for kind in ("file", "package", "folder")
    ]


@pytest.mark.parametrize(
    ("names", "kind"),
    [(OURS, "file"), (OURS, "package"), (OURS, "folder"), (NOT_IN_WORKERS, "file"), *each_alone()],
)
def test_a_script_beside_such_files_trains(names: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    files = {name: beside(script, name, kind) for name in names}
    said, warned = run(script, SCRIPT, REDUCTION_AUTO="ddp")
    gradient, outcome = said.splitlines()
    assert gradient == "[[3.0, 4.0]]"
    hiding = [] if kind == "folder" else [name for name in names if name not in NOT_IN_WORKERS]
    if not hiding:
        assert "REDUCTION_AUTO=ddp: DistributedDataParallel module 1 will average" in warned
        assert outcome == "summed"
        return
    hidden = f"{files[hiding[0]]} hides the package {hiding[0]!r} of reduction-server: rename it"
    assert f"reduction-server: REDUCTION_AUTO=ddp has no effect: {hidden}" in warned
    assert outcome.startswith(hidden)


def test_a_script_that_does_not_use_us_gets_no_warning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for name in OURS:
        beside(script, name, "file")
    assert run(script, "import torch\nprint(torch.ones(2).sum().item())") == ("2.0\n", "")


def test_importing_our_code_names_the_file_that_hides_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    file = beside(script, "reduction", "file")
    text = "try:\n    import worker_plugin\nexcept ImportError as error:\n    print(error)"
    assert run(script, text)[0].startswith(f"{file} hides the package 'reduction'")


@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_the_reducer_command_in_such_a_folder(kind: str, tmp_path: Path) -> None:
    for name in OURS:
        beside(tmp_path / "train.py", name, kind)
    ended = subprocess.run(
        [Path(sys.executable).with_name("reducer"), "--version"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join([".", os.environ.get("PYTHONPATH", "")])),
    )
    assert ended.stdout.startswith("reducer, version "), ended.stderr
