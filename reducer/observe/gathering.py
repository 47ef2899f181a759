"""Gather the metrics of all processes of a `reducer serve` in the first process.

The supervisor creates a pair of sockets for each other process (`reducer.process.messages`). At each start, the
first process inherits one end of every pair, and the other process the other end of its pair. No other process
can use them. A request is a new socket, to which the other process writes the text and then closes it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from reduction.log_limit import LINES

from reducer.observe.metrics import ANSWER_S

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 1 << 16
#: Minimum timeout, because a timeout of 0 would make a socket non-blocking.
_LEAST_S = 0.001


def answer(asked: socket.socket, text: Callable[[], str]) -> None:
    """Answer requests on a daemon thread, one after the other, until there can be no more requests."""
    threading.Thread(target=_answer, args=(asked, text), name="reducer-metrics", daemon=True).start()


def _answer(asked: socket.socket, text: Callable[[], str]) -> None:
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        except OSError:  # the socket was closed
            return
        if not request:
            return
        for descriptor in descriptors:  # empty if this process has no descriptor left
            with socket.socket(fileno=descriptor) as connection:
                connection.settimeout(ANSWER_S)
                try:
                    connection.sendall(text().encode())
                except Exception as error:  # later requests are still answered
                    what = "cannot send metrics to the first process reason=%r"
                    LINES.log(log, logging.WARNING, "metrics", "", what, error)


def ask(lines: Sequence[socket.socket]) -> list[str | None]:
    """Return the answers of the processes at the other ends within ANSWER_S; None for no answer."""
    deadline = time.monotonic() + ANSWER_S
    with ExitStack() as stack:
        connections = []
        for one in lines:
            connection, theirs = socket.socketpair()
            connections.append(stack.enter_context(connection))
            with theirs, suppress(OSError):  # it has many unread requests, and will not answer this one
                socket.send_fds(one, [b"?"], [theirs.fileno()], socket.MSG_DONTWAIT)
        return [_receive(connection, deadline) for connection in connections]


def _receive(connection: socket.socket, deadline: float) -> str | None:
    parts: list[bytes] = []
    try:
        while True:
            connection.settimeout(max(_LEAST_S, deadline - time.monotonic()))
            part = connection.recv(_RECEIVE_BYTES)
            if not part:
                return b"".join(parts).decode() or None
            parts.append(part)
    except OSError:
        return None
