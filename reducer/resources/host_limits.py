"""Read from the kernel and from cgroups how many cores and how much memory a reducer may use.

A container sees the cores and the memory of its host. Its limits are in its cgroup and that cgroup's
ancestors, and the tightest one counts. There are two versions of cgroups, and a host may use both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: `reducer serve` starts at most this many processes by default, because each rank opens a stream to
#: each process. Further cores are left to other programs of the host.
PROCESSES_DEFAULT_MAX = 8
#: The share of the memory that jobs may reserve by default. The rest is for the processes (60 MiB
#: each, and up to 64 MiB of buffers that each keeps), for strangers and for sockets.
MEMORY_SHARE = 0.7
#: Bytes that jobs may reserve if the size of the memory is unknown.
MEMORY_UNKNOWN = 4 << 30


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """Folders of this process's cgroup in one hierarchy: its own, then its ancestors."""

    folders: tuple[Path, ...]
    is_v2: bool


def default_processes(root: Path = Path("/")) -> int:
    """Return the default number of processes: the whole cores, from 1 to PROCESSES_DEFAULT_MAX."""
    return max(1, min(int(cores(root)), PROCESSES_DEFAULT_MAX))


def default_memory_limit(root: Path = Path("/")) -> int:
    """Return how many bytes all jobs may reserve in all processes by default."""
    there = memory(root)
    return MEMORY_UNKNOWN if there is None else int(there * MEMORY_SHARE)


def cores(root: Path = Path("/")) -> float:
    """Return how many cores this process may use, by its affinity and the quotas of its cgroups."""
    # Only Linux has sched_getaffinity.
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    count = float(len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
    return min([count, *_quotas(root)])


@dataclass(frozen=True, slots=True)
class Periods:
    """Periods of the scheduler in which a cgroup with a quota wanted to run."""

    all: int = 0
    #: Periods in which the quota stopped it.
    throttled: int = 0


def cpu_periods(root: Path = Path("/")) -> Periods:
    """Return the periods of this process's most throttled cgroup so far; zeros without a quota."""
    most = Periods()
    for cgroup in _cgroups(root, "cpu"):
        for folder in cgroup.folders:
            lines = (line.split() for line in _text(folder / "cpu.stat").splitlines())
            stat = {words[0]: _number(words[1:]) for words in lines if words}
            found = Periods(stat.get("nr_periods", 0), stat.get("nr_throttled", 0))
            if (found.throttled, found.all) > (most.throttled, most.all):
                most = found
    return most


def memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may use, or None if unknown.

    This is the machine's memory, or the limit of a cgroup if that is lower."""
    return min([*machine_memory(root), *_memory_limits(root)], default=None)


def machine_memory(root: Path = Path("/")) -> list[int]:
    """Return the machine's bytes of memory as a list, which is empty if they are unknown."""
    lines = _text(root / "proc/meminfo").splitlines()
    totals = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")]
    return totals or _physical()


def _physical() -> list[int]:
    """Return the machine's memory from POSIX, for systems without /proc; empty if unknown."""
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
            if limit > 0:  # "max", or more than any machine has, means that there is no limit
                yield limit


def _cgroups(root: Path, controller: str) -> Iterator[_Cgroup]:
    """Yield this process's cgroup in each hierarchy that has the controller."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        # cgroups(7): hierarchy-ID:controller-list:cgroup-path
        _, controllers, path = line.split(":", 2)
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
        # The mount may begin below the root of the hierarchy. In a container that shows the host's names it
        # may begin elsewhere, and the container's cgroup is then the mount point.
        folder = mounted / ours.removeprefix(start).lstrip("/")
        parents = [parent for parent in folder.parents if parent.is_relative_to(mounted)]
        yield _Cgroup((folder, *parents), is_v2)


def _text(path: Path) -> str:
    """Return a file's content, or an empty string if the file is missing or cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(words: list[str]) -> int:
    """Return the first word if it is a number, otherwise 0."""
    return int(words[0]) if words and words[0].isdecimal() else 0
