"""A port of this process that stays open while the process lives, so that reducers can tell when it has ended.

See reducer/transports/lives.py. It accepts connections, closes them immediately, and reads nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading

from worker_plugin.process import fork
from worker_plugin.process.io_loop import io_loop


class _Port:
    """The listening socket. Only this process may keep it open."""

    def __init__(self) -> None:
        self._listener = _listen()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), io_loop())
        self.number: int = self._listener.getsockname()[1]
        fork.register(self)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `fork.DescriptorOwner`."""
        return set(), [self._listener.fileno()]

    async def _serve(self) -> asyncio.AbstractServer:
        return await asyncio.get_running_loop().create_server(_Closing, sock=self._listener)


class _Closing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection."""
        transport.close()


_lock = threading.Lock()
_port: _Port | None = None


def life_port() -> int:
    """Return the port's number, or 0 if it cannot be opened. The first call in a process opens it. For any thread."""
    global _port
    with _lock:
        if _port is None:
            try:
                _port = _Port()
            except OSError:  # e.g. out of descriptors; then this process's end is noticed a second later
                return 0
        return _port.number


def _listen() -> socket.socket:
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # a host without IPv6
        return socket.create_server(("", 0))


def _forget() -> None:
    """Reset a forked child, which is another process."""
    global _lock, _port
    _lock, _port = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
