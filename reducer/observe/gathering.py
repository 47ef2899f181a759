"""How the first process of a `reducer serve` gets the metrics of the others.

Each of them listens at an abstract UNIX socket, whose name the supervisor has made up and told all of
them; so the processes need no ports of their own, and one that starts again is found again. A
connection to it brings the text and then its end. The metrics are open to everybody anyway.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from reducer.observe.metrics import ANSWER_S

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 1 << 16
#: Pause after the process ran out of descriptors, in seconds.
_PAUSE_S = 1.0
#: A timeout of 0 would mean that a socket does not block.
_LEAST_S = 0.001


def socket_name(name: str, number: int) -> str:
    """Return where process `number` listens, among those that have been told this name."""
    return f"\0reducer-metrics-{name}-{number}"


def listener(name: str) -> socket.socket:
    """Return a socket that listens at a name of `socket_name`.

    Raises:
        OSError: somebody else does.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(name)
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def answer(listening: socket.socket, text: Callable[[], str]) -> None:
    """Answer whoever connects, from a daemon thread, one after the other."""
    threading.Thread(target=_answer, args=(listening, text), name="reducer-metrics", daemon=True).start()


def _answer(listening: socket.socket, text: Callable[[], str]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError as error:
            if listening.fileno() < 0:  # it was closed
                return
            log.warning("cannot accept who asks for my metrics reason=%s", error)
            time.sleep(_PAUSE_S)
            continue
        with connection:
            connection.settimeout(ANSWER_S)
            try:
                connection.sendall(text().encode())
            except Exception as error:  # the next one is answered all the same
                log.warning("cannot tell the first process my metrics reason=%r", error)


def ask(names: Sequence[str]) -> list[str | None]:
    """Return what the processes that listen at these names answer within ANSWER_S; None for no answer."""
    deadline = time.monotonic() + ANSWER_S
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in names]
        for connection, name in zip(connections, names, strict=True):
            with suppress(OSError):  # then it cannot be read from, either
                connection.settimeout(max(_LEAST_S, deadline - time.monotonic()))
                connection.connect(name)
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
