"""Inventory of a GPU machine, and the speed of copies between the GPU and page-locked memory. Not run yet.

    python -m benchmarks.gpu.inventory --json inventory.json
    python -m benchmarks.gpu.inventory --device cpu --tiny       # the tool itself, without a GPU

`both` copies down and up concurrently, on two streams, as training does; its rate is per direction.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.nccl_ranks import check_gpus
from benchmarks.lab import environment
from benchmarks.lab.ending import ending_well
from benchmarks.many_cores import lacks
from benchmarks.method.experiment import Line
from benchmarks.method.table import markdown

MIB = 1 << 20
SIZES = (1 * MIB, 4 * MIB, 25 * MIB, 256 * MIB)
#: Minimum bytes copied for each figure, and the number of figures for the median.
LEAST_BYTES, FIGURES = 1 << 30, 5
_COMMANDS = (
    (
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv",
    ),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "-q", "-d", "COMPUTE"),
    ("ip", "-V"),
    ("df", "-h", "/dev/shm"),
)


class Copies:
    """Two tensors on the device and two page-locked ones, with a stream per direction."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device, self._is_gpu = device, device.type == "cuda"
        self._tensors = [torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
        self._host = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=self._is_gpu) for _ in range(2)]
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if self._is_gpu else [None, None]  # type: ignore[no-untyped-call]

    def gb_s(self, names: tuple[str, ...], repeats: int) -> float:
        """Return the rate of each direction, in GB/s = 1e9 bytes/s.

        Args:
            names: "down", "up" or both.
            repeats: number of copies.
        """
        self._wait()
        began = time.perf_counter()
        for _ in range(repeats):
            for name in names:
                self._copy(name)
        self._wait()
        return repeats * self._host[0].nbytes / (time.perf_counter() - began) / 1e9

    def _copy(self, name: str) -> None:
        index = ("down", "up").index(name)
        target, source = self._host[index], self._tensors[index]
        if name == "up":
            target, source = source, target
        with torch.cuda.stream(self._streams[index]):  # without a GPU this does nothing
            target.copy_(source, non_blocking=True)

    def _wait(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize(self._device)


def rates(device: torch.device, sizes: tuple[int, ...], least_bytes: int) -> list[dict[str, Any]]:
    """Return the median rates of copies in GB/s, with a row for each size in bytes."""
    rows = []
    for nbytes in sizes:
        copies, repeats = Copies(device, nbytes), max(1, least_bytes // nbytes)
        row: dict[str, Any] = {"bytes": nbytes}
        for name, directions in {"down": ("down",), "up": ("up",), "both": ("down", "up")}.items():
            copies.gb_s(directions, 1)
            row[name] = statistics.median(copies.gb_s(directions, repeats) for _ in range(FIGURES))
        rows.append(row)
    return rows


def said(command: tuple[str, ...]) -> str:
    """Return the output of a command, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return (done.stdout + done.stderr).strip()


def machine() -> dict[str, Any]:
    """Return the facts that need no copies."""
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return {
        "environment": environment.describe(),
        "cuda": torch.version.cuda,
        "nccl": list(torch.cuda.nccl.version()) if has_nccl else None,
        "shaped links": lacks().get("links", "yes"),
        "mps": shutil.which("nvidia-cuda-mps-control"),
        "cores": os.cpu_count(),
        "commands": {" ".join(command): said(command) for command in _COMMANDS},
    }


def main() -> None:
    parser = Line("gpu.inventory", __doc__, device="cuda", tiny=False, json=None)
    given = parser.parse_args()
    with ending_well("inventory"):
        document = machine()
        if given.device == "cuda":
            check_gpus(1)
        sizes, least = ((1024, 4096), 1 << 16) if given.tiny else (SIZES, LEAST_BYTES)
        document["copies"] = rates(torch.device(given.device), sizes, least)
    if given.json is not None:
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    print(environment.summary(document["environment"]))
    for name in ("cuda", "nccl", "shaped links", "mps", "cores"):
        print(f"{name}: {document[name]}")
    for command, text in document["commands"].items():
        print(f"$ {command}\n{text}")
    cells = [
        [f"{row['bytes'] / MIB:g} MiB", *(f"{row[name]:.1f}" for name in ("down", "up", "both"))]
        for row in document["copies"]
    ]
    print("\n".join(markdown(["page-locked, GB/s", "down", "up", "both, each way"], cells)))


if __name__ == "__main__":
    sys.exit(main())
