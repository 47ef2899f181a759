"""How much of the machine these processes may use: cores and memory, as the kernel and the container's cgroups say.

A container sees the cores and the memory of its host; what it may have of them is in its cgroup,
and in those above it, of which the tightest counts. There are two versions of cgroups, and a host
may have both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Most processes that `reducer serve` starts by itself. More cores are for whoever else is on the
#: host; a rank opens a stream to each process.
PROCESSES_DEFAULT_MAX = 8
#: The part of the memory that jobs may reserve by default. The rest is for the processes themselves
#: (60 MiB each, and up to 64 MiB of buffers that they keep), for strangers, and for sockets.
MEMORY_SHARE = 0.7
#: What jobs may reserve if nothing says how much memory there is.
MEMORY_UNKNOWN = 4 << 30


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """Folders of this process's cgroup in one hierarchy, its own first and then those above it."""

    folders: tuple[Path, ...]
    is_v2: bool


def default_processes(root: Path = Path("/")) -> int:
    """Return how many processes serve by default: as many as there are whole cores for, 1 to PROCESSES_DEFAULT_MAX."""
    return max(1, min(int(cores(root)), PROCESSES_DEFAULT_MAX))


def default_memory_limit(root: Path = Path("/")) -> int:
    """Return what all jobs in all processes may reserve by default, in bytes."""
    there = memory(root)
    return MEMORY_UNKNOWN if there is None else int(there * MEMORY_SHARE)


def cores(root: Path = Path("/")) -> float:
    """Return how many cores this process may use, by its affinity and the quotas of its cgroups."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # Linux has it
    count = float(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    return min([count, *_quotas(root)])


def memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes of memory this process may use: the machine's, or its cgroups' if that is less."""
    lines = _text(root / "proc/meminfo").splitlines()
    totals = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")]
    return min([*(totals or _physical()), *_memory_limits(root)], default=None)


def _physical() -> list[int]:
    """Return the machine's memory as POSIX tells it, where there is no /proc; nothing if it does not."""
    try:
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        return []


def _quotas(root: Path) -> Iterator[float]:
    for cgroup in _cgroups(root, "cpu"):
        for folder in cgroup.folders:
            if cgroup.is_v2:
                words = _text(folder / "cpu.max").split()
            else:
                words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
            quota, period = _number(words[:1]), _number(words[1:])
            if quota > 0 and period > 0:
                yield quota / period


def _memory_limits(root: Path) -> Iterator[int]:
    for cgroup in _cgroups(root, "memory"):
        for folder in cgroup.folders:
            name = "memory.max" if cgroup.is_v2 else "memory.limit_in_bytes"
            limit = _number(_text(folder / name).split())
            if limit > 0:  # without a limit it is "max", or more than any machine has
                yield limit


def _cgroups(root: Path, controller: str) -> Iterator[_Cgroup]:
    """Yield this process's place in each hierarchy that may limit what the controller is for."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)  # cgroups(7): hierarchy-ID:controller-list:cgroup-path
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # proc(5): ... root, mount point, options - type, source, options
        before, _, after = line.partition(" - ")
        start, mount_point = before.split(" ")[3:5]
        words = after.split(" ")
        kind, options = words[0], words[-1]
        is_v2 = kind == "cgroup2"
        ours = paths.get("" if is_v2 else controller)
        if ours is None or not (is_v2 or (kind == "cgroup" and controller in options.split(","))):
            continue
        mounted = root / mount_point.lstrip("/")
        # What is mounted may begin somewhere below the root of the hierarchy, or, in a container
        # that shows the names of the host, somewhere else: its own cgroup is then the mount point.
        folder = mounted / ours.removeprefix(start).lstrip("/")
        parents = [parent for parent in folder.parents if parent.is_relative_to(mounted)]
        yield _Cgroup((folder, *parents), is_v2)


def _text(path: Path) -> str:
    """Return a file's content; nothing if there is no such file, or it may not be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(words: list[str]) -> int:
    """Return the first word if it is a number, otherwise 0."""
    return int(words[0]) if words and words[0].isdecimal() else 0
