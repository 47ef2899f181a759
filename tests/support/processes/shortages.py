"""Ways to exhaust a process's resources: limits that are restored, and a forbidden system call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

#: By machine: the numbers of seccomp(2) and memfd_create(2), and the AUDIT_ARCH of linux/audit.h.
_NUMBERS = {"x86_64": (317, 319, 0xC000003E), "aarch64": (277, 279, 0xC00000B7)}
_SET_MODE_FILTER, _ALL_THREADS, _NO_NEW_PRIVILEGES = 1, 1, 38
#: From linux/filter.h and linux/seccomp.h: load a word, jump if equal, return; allow, and fail with a number.
_LOAD, _JUMP, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def mapped_bytes(pid: int | str = "self") -> int:
    """Return the size of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def limit(pid: int, what: int, allowed: int) -> None:
    """Set a soft limit of a process."""
    resource.prlimit(pid, what, (allowed, resource.prlimit(pid, what)[1]))


@contextlib.contextmanager
def limited(what: int, allowed: int) -> Iterator[None]:
    """Set a soft limit of this process for a block."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


@contextlib.contextmanager
def no_descriptors(spare: int) -> Iterator[None]:
    """Leave this process exactly this many descriptors for a block, whatever its limit was before."""
    with limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + 8):
        taken: list[int] = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(spare):
                os.close(taken.pop())
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)


def forbid_memory_files() -> None:
    """Make memfd_create fail with EPERM in all threads of this process and in its children, permanently."""
    seccomp, memfd_create, machine = _NUMBERS[platform.machine()]
    code = b"".join(
        struct.pack("HBBI", *line)
        for line in (
            (_LOAD, 0, 0, 4),  # the machine, in struct seccomp_data
            (_JUMP, 0, 3, machine),
            (_LOAD, 0, 0, 0),  # the system call number
            (_JUMP, 0, 1, memfd_create),
            (_RETURN, 0, 0, _FAIL | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    memory = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(memory)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        seccomp, _SET_MODE_FILTER, _ALL_THREADS, program
    ):
        raise OSError(ctypes.get_errno(), "seccomp")
