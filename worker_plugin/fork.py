"""Forked children must not keep our connections open.

A DataLoader worker inherits every descriptor. If the training process is then killed, the reducers see no
end of its streams until the child ends too (3.5 s late in a trial). So the child closes what it inherited:
closes, never shuts down, which would end the parent's connection as well.
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
    """Have forked children close what this holder holds."""
    _holders.add(holder)


def _after_in_child() -> None:
    addresses: set[tuple[str, int]] = set()
    for holder in list(_holders):
        more, descriptors = holder.inherited()
        addresses |= more
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    _holders.clear()
    if addresses:
        _close_sockets_to(addresses)


def _close_sockets_to(addresses: set[tuple[str, int]]) -> None:
    """Close this process's sockets that are connected to one of these; gRPC does not tell which are its own."""
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as probe:
                peer = probe.getpeername()
            if isinstance(peer, tuple) and (peer[0].removeprefix("::ffff:"), peer[1]) in addresses:
                os.close(int(name))


os.register_at_fork(after_in_child=_after_in_child)
