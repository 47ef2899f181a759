"""Calls that may block for very long, such as to a name server: on a thread of their own, which can be left alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

#: What `socket.getaddrinfo` returns: of each address family, kind, protocol, name and the address itself.
Answers: TypeAlias = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]
T = TypeVar("T")


def begin(call: Callable[[], T]) -> Future[T]:
    """Run a function on a thread of its own, and return the future of its outcome.

    Nobody has to wait for the thread: it does not keep the process alive, as the threads of an executor do.
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
    """Return the future of `getaddrinfo` for a TCP port. Name servers that do not answer may keep it for minutes."""
    return begin(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
