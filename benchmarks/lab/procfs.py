"""What a process holds, as Linux tells it in /proc, and as glibc tells it inside."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process at one moment."""

    #: Resident, shared libraries included.
    rss_bytes: int
    #: Resident, each shared page divided by the number of its users.
    pss_bytes: int
    threads: int
    descriptors: int
    #: See `heap_bytes`; None if nobody asked inside.
    heap_bytes: int | None = None


def footprint(pid: int) -> Footprint:
    """Return what a process holds now.

    Raises:
        OSError: it is gone, or belongs to somebody else.
    """
    process = Path("/proc", str(pid))
    # Not VmRSS of `status`: the kernel adds that up from counters per thread, which lag (proc(5)).
    memory = _fields(process / "smaps_rollup")
    return Footprint(
        rss_bytes=memory["Rss"] * 1024,
        pss_bytes=memory["Pss"] * 1024,
        threads=_fields(process / "status")["Threads"],
        descriptors=len(os.listdir(process / "fd")),
    )


class _MallocInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    ] + [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


def heap_bytes() -> int | None:
    """Return the bytes that this process has allocated and not freed; None if its libc is not glibc 2.33 or newer.

    Unlike resident memory it does not see what the allocator keeps for later, or cannot give back because of a
    small block that lives above it. Python's own small objects are elsewhere.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)  # in all arenas, and mapped one by one (mallinfo(3))


def _fields(path: Path) -> dict[str, int]:
    """Return the lines `Name:   12 kB` of a file; others are left out."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0])
    return found
