"""What a supervisor and its serving processes tell each other, in lines on the process's stdin and stdout.

to the process
    siblings PORT ...     gRPC ports of the others beside the first one; nothing but `siblings` to the others
    drain                 take no new jobs, and end when no job needs you
    the end of stdin      the supervisor is gone: drain, but for 2 seconds at most
from the process
    listening on ADDRESS  first: it serves (`reduction.process.ready`)
    used, unused          whether it has a job; only if the reducer ends by itself, and not before its first job
    drain                 somebody asks the whole reducer to drain: by a signal to this process, or `reducer drain`
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

SIBLINGS, DRAIN, USED, UNUSED = "siblings", "drain", "used", "unused"


def siblings_line(ports: Sequence[int]) -> str:
    """Return the line that names ports."""
    return " ".join([SIBLINGS, *map(str, ports)])


def metrics_line() -> tuple[socket.socket, socket.socket]:
    """Return the end by which the first process asks another one for its metrics, and the other process's end."""
    first, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # few requests wait for a process that is away
    return first, other


def siblings_of(line: str) -> tuple[int, ...] | None:
    """Return the ports of such a line; None if it is another one."""
    word, *ports = line.split() or [""]
    return tuple(map(int, ports)) if word == SIBLINGS else None
