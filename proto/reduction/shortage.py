"""Recognise errors that mean this process or its host has run out of a resource."""

from __future__ import annotations

import errno
import os
import resource

from reduction.errors import LocalProtocolError, ReductionError, ResourceExhausted

#: For each error number, the limit of this process that may be the cause, and the remedy.
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
#: Descriptors that shared memory leaves free, because connections need them and can do without shared memory.
DESCRIPTORS_SPARE = 16
#: Texts in a RuntimeError of torch's allocators;
#: https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")


def shortage(error: BaseException) -> str:
    """Return the exhausted resource, its limit and the remedy, for people; empty if the error is not a shortage."""
    number = _number(error)
    if number not in _CAUSES:
        return ""
    limit, remedy = _CAUSES[number]
    soft = resource.RLIM_INFINITY if limit is None else resource.getrlimit(limit)[0]
    allowed = "" if soft == resource.RLIM_INFINITY else f", this process may have {soft}"
    return f"{os.strerror(number)}{allowed}: raise {remedy}"


def check_spare(descriptor: int) -> None:
    """Check that a new descriptor for an optional purpose leaves enough descriptors for connections.

    Raises:
        OSError: it does not, with EMFILE.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # All lower numbers are taken, because the system returns the lowest free one (open(2)).
    if soft != resource.RLIM_INFINITY and descriptor >= soft - DESCRIPTORS_SPARE:
        raise OSError(errno.EMFILE, f"the last {DESCRIPTORS_SPARE} descriptors of {soft} are for connections")


def failure_of(what: str, error: Exception) -> ReductionError:
    """Return the error that ends a job here: ResourceExhausted for a shortage, else LocalProtocolError, a bug here.

    Args:
        what: the action that failed.
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
