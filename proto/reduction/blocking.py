"""Run calls that may block for a long time, such as name lookups, on a thread that can be abandoned."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

#: Return type of `socket.getaddrinfo`: tuples of address family, kind, protocol, name and socket address.
Answers: TypeAlias = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]
T = TypeVar("T")


def begin(call: Callable[[], T]) -> Future[T]:
    """Run a function on its own thread, and return a future for its outcome.

    The thread never has to be joined. Unlike an executor's threads, it does not keep the process alive.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name="reduction-blocking", daemon=True).start()
    return outcome


def look_up(host: str, port: int) -> Future[Answers]:
    """Return a future for `getaddrinfo` of a TCP port. Unresponsive name servers may delay it for minutes."""
    return begin(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
