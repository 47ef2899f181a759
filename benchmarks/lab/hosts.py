"""Where a process runs: on this machine as it is, or in a network namespace of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Where `ip netns add` puts its handles, ip-netns(8).
NETNS = Path("/run/netns")

_CLONE_NEWNET = 0x40000000  # sched.h; os.setns comes with Python 3.12 only
_HERE = "/proc/thread-self/ns/net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a process needs to know about its place."""

    address: str
    interface: str
    #: None: that of whoever starts the process.
    namespace: str | None = None

    @property
    def prefix(self) -> list[str]:
        """What makes a command run here, put before it."""
        return [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread here for a while: sockets it opens and processes it starts belong here.

        A child is born in the namespace of the thread that starts it, so with all its threads, and before it
        has imported anything. /sys stays the caller's; /proc/thread-self/net is this place's.
        """
        if self.namespace is None:
            yield
            return
        home = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(NETNS / self.namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)


LOOPBACK = Host(address="127.0.0.1", interface="lo")


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")
