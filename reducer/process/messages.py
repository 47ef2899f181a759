"""Messages between a supervisor and its serving processes, as lines on the process's stdin and stdout.

to the process
    siblings PORT ...     to the first process: gRPC ports of the others; to the others: just `siblings`
    drain                 accept no new jobs, and end when no job needs the process
    the end of stdin      the supervisor is gone: drain, but for at most 2 seconds
from the process
    listening on ADDRESS  first: it serves (`reduction.process.ready`)
    used, unused          whether it has a job; only if the reducer ends on its own, and not before its first job
    drain                 the whole reducer was asked to drain, by a signal to this process or `reducer drain`
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

SIBLINGS, DRAIN, USED, UNUSED = "siblings", "drain", "used", "unused"


def siblings_line(ports: Sequence[int]) -> str:
    """Return the line with the siblings' ports."""
    return " ".join([SIBLINGS, *map(str, ports)])


def metrics_line() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets for metrics requests: the first process's end, and the other process's end."""
    first, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # few requests wait for an absent process
    return first, other


def siblings_of(line: str) -> tuple[int, ...] | None:
    """Return the ports of a siblings line, or None for any other line."""
    word, *ports = line.split() or [""]
    return tuple(map(int, ports)) if word == SIBLINGS else None
