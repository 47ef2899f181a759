"""The machine, the versions and the command of a benchmark, which are needed to trust or repeat its numbers."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("reduction-server", "torch", "grpcio", "protobuf", "numpy", "uvloop")
_PREFIXES = ("REDUCTION_", "GLOO_", "NCCL_", "CUDA_", "OMP_", "MKL_")

#: A higher load than this before the benchmarks comes from other programs.
BUSY_LOAD = 0.5


def describe() -> dict[str, Any]:
    """Return the environment, ready for JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg(),
        "gpus": _gpus(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        # The build of the interpreter matters more than its version. With pyenv's default build, sums of
        # 4 KiB take a quarter longer (docs/decisions/python.md).
        "python_file": os.path.realpath(sys.executable),
        "versions": {package: _version(package) for package in _PACKAGES},
        "command": _command(sys.orig_argv),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)
        },
    }


def summary(environment: dict[str, Any]) -> str:
    """Return the machine and the versions on one line."""
    versions = environment["versions"]
    gpus = "".join(f"{gpu}; " for gpu in environment.get("gpus", ()))
    return (
        f"{gpus}{environment['cpu']}, {environment['cores']} cores, Linux {environment['kernel']}, "
        f"Python {environment['python']}, torch {versions['torch']}, grpcio {versions['grpcio']}, "
        f"numpy {versions['numpy']}, commit {environment['commit']}, load {environment['load_average'][0]:.2f}"
    )


def is_busy(environment: dict[str, Any]) -> bool:
    """Return whether other programs used more than half a core in the minute before the benchmarks."""
    return bool(environment["load_average"][0] > BUSY_LOAD)


def _command(arguments: Sequence[str]) -> str:
    """Return the command line without the folders of the interpreter and of the script."""
    rest = list(arguments[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest.pop(0)
    if not rest or rest[0] == "-m":
        return shlex.join(["python", *rest])
    return shlex.join([Path(rest[0]).name, *rest[1:]])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _gpus() -> list[str]:
    """Return name, driver and compute mode of each GPU.

    In the mode Exclusive_Process, ranks can share a GPU only through CUDA's MPS.
    """
    command = ["nvidia-smi", "--query-gpu=name,driver_version,compute_mode", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return output.splitlines()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Return the short commit hash, with -dirty if files differ from the commit."""
    try:
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
