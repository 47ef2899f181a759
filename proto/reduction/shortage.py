"""Whether an error says that this process, or its host, has run out of something; then nobody else is at fault."""

from __future__ import annotations

import errno
import os
import resource

from reduction.errors import LocalProtocolError, ReductionError, ResourceExhausted

#: By the error's number: the limit of this process that may be the cause, and what to raise.
_CAUSES: dict[int, tuple[int | None, str]] = {
    errno.EMFILE: (resource.RLIMIT_NOFILE, "ulimit -n"),
    errno.ENFILE: (None, "sysctl fs.file-max"),
    errno.ETOOMANYREFS: (resource.RLIMIT_NOFILE, "ulimit -n"),
    errno.ENOMEM: (resource.RLIMIT_AS, "ulimit -v, the memory of the container, or sysctl vm.max_map_count"),
    errno.ENOBUFS: (None, "the memory of the container"),
    errno.EAGAIN: (resource.RLIMIT_NPROC, "ulimit -u, the container's pids.max, or ulimit -l"),
    errno.EFBIG: (resource.RLIMIT_FSIZE, "ulimit -f"),
    errno.ENOSPC: (None, "the memory of the container or the size of the file system"),
}
#: Descriptors that shared memory leaves free: there can be connections without it, but none without descriptors.
DESCRIPTORS_SPARE = 16
#: In a RuntimeError of torch's allocators; https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")


def shortage(error: BaseException) -> str:
    """Return what is used up, its limit and what to raise, for people; empty if the error says no such thing."""
    number = _number(error)
    if number not in _CAUSES:
        return ""
    limit, remedy = _CAUSES[number]
    soft = resource.RLIM_INFINITY if limit is None else resource.getrlimit(limit)[0]
    allowed = "" if soft == resource.RLIM_INFINITY else f", this process may have {soft}"
    return f"{os.strerror(number)}{allowed}: raise {remedy}"


def check_spare(descriptor: int) -> None:
    """Return if a new descriptor, of something that can be done without, leaves enough for what cannot.

    Raises:
        OSError: it does not, with EMFILE.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # All lower numbers are taken, because the system gives the lowest that is free (open(2)).
    if soft != resource.RLIM_INFINITY and descriptor >= soft - DESCRIPTORS_SPARE:
        raise OSError(errno.EMFILE, f"the last {DESCRIPTORS_SPARE} descriptors of {soft} are for connections")


def failure_of(what: str, error: Exception) -> ReductionError:
    """Return the error that ends a job here: ResourceExhausted for a shortage, otherwise a bug of this process.

    Args:
        what: could not be done.
        error: the cause.
    """
    if isinstance(error, ReductionError):
        return error
    if text := shortage(error):
        return ResourceExhausted(f"{what}: {text}")
    return LocalProtocolError(f"{what}: {error!r}")


def _number(error: BaseException) -> int:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno or 0
    if isinstance(error, RuntimeError):
        text = str(error)
        if "can't start new thread" in text:
            return errno.EAGAIN
        if any(part in text for part in _NO_MEMORY):
            return errno.ENOMEM
    return 0
