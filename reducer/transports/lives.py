"""Detect whether a worker's process is alive by a port on which it listens while it lives.

A broken connection may have been cut, and its worker then dials again. But if the host refuses a connection to the
port, its kernel has reported that the process is gone, and waiting for it is pointless. That counts only if the port
was reached before, because there may be a refusing firewall or a proxy in between.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from reduction.transports.grpc_sockets import address_of

#: Timeout for a host's answer, in seconds.
ANSWER_S = 1.0
#: Times of the probes after a connection has broken, in seconds. An ending process closes its descriptors one by one.
LOOKS_S = (0.0, 0.02, 0.1, 0.3)


class Life:
    """The process at the other end of a call. Use it on the loop's thread.

    Args:
        peer: the call's origin in gRPC's notation.
        port: port on which the process listens; 0: none.
    """

    def __init__(self, peer: str, port: int) -> None:
        self._host, self._port = address_of(peer)[0], port
        self._is_reached = False
        self._task = asyncio.create_task(self._reach()) if self._host and port else None

    def on_lost(self, on_ended: Callable[[], None]) -> None:
        """Check whether the process has ended along with its call, and call `on_ended` if so."""
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
        """Return 0 if the port accepts a connection, otherwise the error's number."""
        try:
            async with asyncio.timeout(ANSWER_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError as error:  # TimeoutError is one
            return error.errno or errno.ETIMEDOUT
        writer.transport.abort()
        return 0
