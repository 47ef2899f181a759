"""Whether a worker's process lives, told by a port that it listens to for as long as it does.

A connection that breaks may have been cut, and its worker then dials again. But where a host refuses a connection to
the port, its kernel says that the process is gone, and nobody needs to wait for it. That counts only if the port was
reached before: it may be behind a firewall that refuses, or a proxy.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from reduction.transports.grpc_sockets import address_of

#: How long a host may take to answer, in seconds.
ANSWER_S = 1.0
#: When it is asked after a connection has broken, in seconds: a process that ends closes one descriptor after another.
LOOKS_S = (0.0, 0.02, 0.1, 0.3)


class Life:
    """The process at the other end of a call. For the loop's thread.

    Args:
        peer: where the call comes from, as gRPC writes it.
        port: that the process listens to; 0: none.
    """

    def __init__(self, peer: str, port: int) -> None:
        self._host, self._port = address_of(peer)[0], port
        self._is_reached = False
        self._task = asyncio.create_task(self._reach()) if self._host and port else None

    def on_lost(self, on_ended: Callable[[], None]) -> None:
        """Find out whether the process has ended, now that its call has, and call this if so."""
        if self._is_reached:
            self._task = asyncio.create_task(self._look(on_ended))

    async def _reach(self) -> None:
        self._is_reached = await self._ask() == 0

    async def _look(self, on_ended: Callable[[], None]) -> None:
        begin = asyncio.get_running_loop().time()
        for at in LOOKS_S:
            await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
            if await self._ask() == errno.ECONNREFUSED:
                on_ended()
                return

    async def _ask(self) -> int:
        """Return 0 if the port takes a connection, otherwise the error's number."""
        try:
            async with asyncio.timeout(ANSWER_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError as error:  # TimeoutError is one
            return error.errno or errno.ETIMEDOUT
        writer.transport.abort()
        return 0
