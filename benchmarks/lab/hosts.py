"""Hosts: the network namespaces in which processes run, or the machine's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: The folder in which `ip netns add` creates a file for each namespace, see ip-netns(8).
NETNS = Path("/run/netns")

# From sched.h; os.setns exists from Python 3.12 on.
_CLONE_NEWNET = 0x40000000
_HERE = "/proc/thread-self/ns/net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The network as a process sees it."""

    address: str
    interface: str
    #: None means the namespace of the parent process.
    namespace: str | None = None
    #: Link rate that its processes are told, in Mbit/s; 0 means none.
    link_mbit: float = 0.0

    @property
    def prefix(self) -> list[str]:
        """The prefix of a command that makes it run on this host."""
        return [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]

    def pids(self) -> list[int]:
        """Return the processes on this host, which must have its own namespace."""
        assert self.namespace is not None
        here = os.stat(NETNS / self.namespace)
        found = []
        for process in Path("/proc").iterdir():
            with suppress(OSError):  # it has just ended
                if process.name.isdecimal() and os.path.samestat(os.stat(process / "ns/net"), here):
                    found.append(int(process.name))
        return found

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread to this host's namespace while the body runs.

        Sockets that the thread opens and processes that it starts belong to this host. A child process and
        all its threads are in the namespace of the starting thread from the beginning, before any import.
        /sys still shows the caller's namespace; /proc/thread-self/net shows this host's.
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
