"""The memory, threads and descriptors of a process, from /proc and from glibc inside the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

#: TCP_LISTEN of include/net/tcp_states.h.
_LISTEN = "0A"
#: Name of our anonymous files in proc(5), see reduction/transports/shared/own.py.
_REGION = "/memfd:reduction"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resources of one process at one moment."""

    #: Resident memory, including shared libraries.
    rss_bytes: int
    #: Resident memory, with each shared page divided by the number of its users.
    pss_bytes: int
    threads: int
    #: Open descriptors except those of regions.
    descriptors: int
    #: Descriptors of shared memory regions, its own and those of peers. They come and go with the buffers.
    regions: int = 0
    #: Result of `heap_bytes`, which only the process itself can call.
    heap_bytes: int | None = None


def footprint(pid: int) -> Footprint:
    """Return the current resources of a process.

    Raises:
        OSError: the process has ended, or belongs to another user.
    """
    process = Path("/proc", str(pid))
    # VmRSS of `status` would be inaccurate, because the kernel adds it up from per-thread counters that lag
    # behind (proc(5)).
    memory = _fields(process / "smaps_rollup")
    paths = []
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(descriptor))
    regions = sum(path.startswith(_REGION) for path in paths)
    return Footprint(
        rss_bytes=memory["Rss"] * 1024,
        pss_bytes=memory["Pss"] * 1024,
        threads=_fields(process / "status")["Threads"],
        descriptors=len(paths) - regions,
        regions=regions,
    )


def cpu_s(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process in steps of 10 ms."""
    # proc(5): the name may contain blanks and brackets; after it, state is field 3, utime 14, stime 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def cores_s() -> tuple[float, float]:
    """Return the idle seconds and the total seconds of all cores of this machine since boot."""
    # proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guest time is in the first two.
    numbers = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(number) for number in numbers]
    return (ticks[3] + ticks[4]) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S


def children(pid: int) -> list[int]:
    """Return the processes that a process has started on any of its threads."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += [int(word) for word in path.read_text().split()]
    return found


def listens(pid: int) -> bool:
    """Return whether a process has a listening TCP socket; False if it has ended."""
    process = Path("/proc", str(pid))
    try:
        # proc(5): the state is field 4 and the inode is field 10.
        sockets = [line.split() for line in (process / "net/tcp").read_text().splitlines()[1:]]
        listening = {f"socket:[{fields[9]}]" for fields in sockets if fields[3] == _LISTEN}
        return any(os.readlink(path) in listening for path in (process / "fd").iterdir())
    except OSError:  # a descriptor may have been closed meanwhile, so the caller must retry
        return False


class _MallocInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


def heap_bytes() -> int | None:
    """Return the bytes that this process has allocated and not freed.

    Unlike resident memory, this excludes memory that the allocator keeps for later, or cannot return
    because a small block above it is in use. It also excludes Python's own small objects. None if the C
    library is not glibc 2.33 or newer.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    # The bytes in all arenas, and those in blocks with their own mapping (mallinfo(3)).
    return int(info.uordblks + info.hblkhd)


def _fields(path: Path) -> dict[str, int]:
    """Return the lines of a file that look like `Name:   12 kB`, as names and numbers."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            fields[name] = int(number[0])
    return fields
