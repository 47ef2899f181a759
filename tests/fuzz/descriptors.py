"""Descriptors that a process on the same host may send: a valid region, and invalid ones."""

from __future__ import annotations

import array
import asyncio
import fcntl
import functools
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from fuzz.scripts import Record

#: Operation of a script's record whose bytes go with the descriptor that its argument chooses.
WITH_DESCRIPTOR = 7
REGION_BYTES = 1 << 14
_F_ADD_SEALS = 1033
_SEALS = 0x0002 | 0x0004 | 0x0010  # SHRINK, GROW, FUTURE_WRITE


def _file(nbytes: int, seals: int) -> int:
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(descriptor, np.arange(min(nbytes, REGION_BYTES) // 4, dtype=np.float32).tobytes(), 0)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
    return descriptor


@functools.cache
def _choices() -> tuple[tuple[int, ...], ...]:
    """Return the choices for one message: a region, one that may shrink, an empty one, a huge one, a pipe, several."""
    region = _file(REGION_BYTES, _SEALS)
    others = _file(REGION_BYTES, 0), _file(0, _SEALS), _file(1 << 50, _SEALS), os.pipe()[0]
    return ((region,), *((other,) for other in others), (region, region), (region,) * 40)


async def send(sock: socket.socket, record: Record) -> None:
    """Send the bytes of a record, and its descriptors if it has any.

    Raises:
        OSError: the peer has closed the connection.
    """
    if record.operation % 8 == WITH_DESCRIPTOR and record.data:
        chosen = array.array("i", _choices()[record.argument % len(_choices())])
        sock.sendmsg([record.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, chosen)])
    else:
        await asyncio.get_running_loop().sock_sendall(sock, record.data)
    await asyncio.sleep(0)


@contextmanager
def nothing_stays() -> Iterator[None]:
    """Check that the body leaves no descriptor open. In Python, a mapping of a region holds a descriptor too."""
    _choices()
    before = _open()
    yield
    if _open() > before:
        gc.collect()  # drops what an exception's traceback has kept
    assert _open() <= before, "a descriptor, or a region, has stayed"


def _open() -> int:
    """Return how many descriptors of the kinds that we send are open in this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            count += os.readlink(f"/proc/self/fd/{name}").startswith(("/memfd:fuzz", "pipe:"))
    return count
