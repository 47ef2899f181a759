"""Forked children must not keep our connections open.

A DataLoader worker inherits every descriptor. If the training process is then killed, the reducers see no
end of its streams until the child ends too (3.5 s late in a trial). So the child lets go of what it inherited, without
shutting it down, which would end the parent's connection as well.

It does so by putting /dev/null in its place. The objects that a descriptor belongs to, of Python or gRPC, have been
copied with the rest, and close its number when they die: were it free meanwhile, that could be a file which the child
has opened since.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import weakref
from typing import Protocol


class Holder(Protocol):
    """Something with descriptors that belong to this process alone."""

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """Return (addresses that our sockets are connected to, other descriptors)."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def register(holder: Holder) -> None:
    """Have forked children let go of what this holder holds."""
    _holders.add(holder)


def _after_in_child() -> None:
    addresses: set[tuple[str, int]] = set()
    numbers: list[int] = []
    for holder in list(_holders):
        more, descriptors = holder.inherited()
        addresses |= more
        numbers += descriptors
    _holders.clear()
    if addresses:
        numbers += _sockets_to(addresses)
    if numbers:
        _replace(numbers)


def _replace(numbers: list[int]) -> None:
    """Put /dev/null in the place of these descriptors."""
    # With no number left to open it there is nothing to be done: the connections stay open as long as the child.
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            os.dup2(null, number, inheritable=False)
        os.close(null)


def _sockets_to(addresses: set[tuple[str, int]]) -> list[int]:
    """Return this process's sockets that are connected to one of these; gRPC does not tell which are its own."""
    numbers = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as probe:
                peer = probe.getpeername()
            if isinstance(peer, tuple) and (peer[0].removeprefix("::ffff:"), peer[1]) in addresses:
                numbers.append(int(name))
    return numbers


os.register_at_fork(after_in_child=_after_in_child)
