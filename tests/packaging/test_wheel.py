"""The wheel, built and installed into an empty environment, runs `reducer serve` and a two-rank all-reduce.

The reducer runs with torch and without it, because a reducer machine has only the wheel's own dependencies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email import message_from_string
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
import reduction
from packaging.requirements import Requirement
from reduction.process.ready import wait_until_ready

ROOT = Path(__file__).parents[2]
PACKAGES = ("reduction", "reduction_server", "reducer", "worker_plugin")
#: Entry points for other programs, under a name that no user's file has.
ENTRY_POINTS = "_reduction_server_entry_points"
TIMEOUT_S = 60

RANK = """
import sys, torch
import reduction, reduction_server, reducer, reduction.v1.reduction_pb2, worker_plugin
from worker_plugin import ReductionState

rank, address = int(sys.argv[1]), sys.argv[2]
tensor = torch.arange(100_000.0) * (rank + 1)
with ReductionState([address], job="wheel", rank=rank, world_size=2, join_timeout_s=30) as state:
    result = state.all_reduce(tensor).wait()
assert torch.equal(result, torch.arange(100_000.0) * 3)
for module in (reduction, reduction_server, reducer, reduction.v1.reduction_pb2, worker_plugin):
    print(module.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a virtual environment with the wheel, which borrows the dependencies of the running one.

    A line in a .pth file adds a folder to sys.path but does not read that folder's own .pth files, so packages
    installed in development mode here stay invisible there.
    """
    home = tmp_path_factory.mktemp("environment")
    site_packages = installed(wheel, home)
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return home


@pytest.fixture(scope="module")
def torch_free(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the result of `pip install reduction-server`: the wheel, and links to its dependencies without extras."""
    home = tmp_path_factory.mktemp("torch_free")
    site_packages = installed(wheel, home)
    (metadata,) = site_packages.glob("reduction_server-*.dist-info")
    wanted = required(PathDistribution(metadata))
    names = set()
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        borrowed = distribution(name)
        wanted |= required(borrowed)
        assert borrowed.files is not None
        for top in {file.parts[0] for file in borrowed.files} - {"..", "__pycache__"}:
            link = site_packages / top
            if not link.exists():  # if several distributions share a namespace, the first brings the folder
                link.symlink_to(Path(str(borrowed.locate_file(top))))
    return home


@pytest.fixture(params=["environment", "torch_free"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a reducer run by the wheel's console script; it must drain and exit 0 on SIGTERM."""
    home: Path = request.getfixturevalue(request.param)
    command = [home / "bin" / "reducer", "serve", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=home, env=clean_environ()
    ) as process:
        try:
            yield wait_until_ready(process, TIMEOUT_S)
            assert process.stdout is not None
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        entry_points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    info = metadata.removesuffix("/METADATA")
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, f"{ENTRY_POINTS}.py", info}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    stubs = ("reduction.proto", "reduction_pb2.py", "reduction_pb2.pyi")
    assert {f"reduction/v1/{stub}" for stub in stubs} <= names
    assert {f"reducer/observe/page/page.{kind}" for kind in ("html", "css", "js")} <= names
    assert f"{info}/licenses/LICENSE" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    fields = message_from_string(text)
    assert fields["Name"] == "reduction-server"
    assert fields["Version"] == reduction.__version__
    targets = [line.partition(" = ")[2] for line in entry_points.splitlines() if " = " in line]
    assert [target.partition(":")[0] for target in targets] == [ENTRY_POINTS] * 3


def test_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT / ("proto" if name == "reduction" else ""), name) for name in PACKAGES)
        for path in (base / package).rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert sources <= names


def test_installed_wheel_reduces(environment: Path, address: str) -> None:
    python = environment / "bin" / "python"
    ranks = [
        subprocess.Popen(
            [python, "-c", RANK, str(rank), address],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=environment,
            env=clean_environ() | {"REDUCTION_LOG": "warning", "REDUCTION_RUN": "wheel"},
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            output, _ = rank.communicate(timeout=TIMEOUT_S)
            assert rank.returncode == 0, output
            files = output.split()
            assert len(files) == 5
            assert all(Path(file).is_relative_to(environment) for file in files), files
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_console_script_prints_its_version(environment: Path) -> None:
    assert run(environment / "bin" / "reducer", "--version", cwd=environment).startswith("reducer, version ")


def test_torch_is_an_extra(torch_free: Path) -> None:
    (metadata,) = torch_free.glob("lib/python*/site-packages/reduction_server-*.dist-info")
    assert "torch" not in required(PathDistribution(metadata))
    assert "torch" in required(PathDistribution(metadata), extra="torch")
    run(sys.executable, "-m", "pip", "--python", torch_free / "bin" / "python", "check", cwd=torch_free)


@pytest.mark.parametrize("module", ["worker_plugin", "worker_plugin.core", "worker_plugin.state"])
def test_without_torch_the_worker_says_what_to_install(torch_free: Path, module: str) -> None:
    done = subprocess.run(
        [torch_free / "bin" / "python", "-c", f"import {module}"],
        cwd=torch_free,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: worker_plugin needs torch 2.8 or newer, but torch is not installed: "
        'pip install "reduction-server[torch]"'
    )


def installed(wheel: Path, home: Path) -> Path:
    """Make a virtual environment with the wheel and nothing else; return its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    run(
        *(sys.executable, "-m", "pip", "--python", home / "bin" / "python"),
        *("install", "--no-deps", "--no-index", wheel),
        cwd=home,
    )
    (site_packages,) = home.glob("lib/python*/site-packages")
    return site_packages


def required(dist: Distribution, extra: str = "") -> set[str]:
    """Return the names of a distribution's dependencies here."""
    requirements = map(Requirement, dist.requires or ())
    return {each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": extra})}


def clean_environ() -> dict[str, str]:
    """Return this process's variables without those that point Python or the plug-in elsewhere."""
    prefixes = ("PYTHON", "REDUCTION_", "COV_", "COVERAGE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def run(*command: str | Path, cwd: Path) -> str:
    """Run to the end; return stdout. On failure, show all output."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_environ(), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
