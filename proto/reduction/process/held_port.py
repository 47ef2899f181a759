"""Ports that a process keeps for a server which it starts, and starts again when that has ended.

While a server is away anybody could listen at its port, and its clients would show their tokens there. So its
parent binds the port as well, without listening. Linux lets nobody else bind it then but processes of the same
user that also set SO_REUSEPORT, as the server does, and connections go to those that listen (socket(7)).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

#: How many ports are tried until one is free on all addresses of the host.
_TRIES = 16


def hold(hosts: Sequence[str], port: int = 0) -> tuple[int, list[socket.socket]]:
    """Bind a port on all addresses of some hosts; 0 picks one that is free there. Return it, and what holds it.

    Raises:
        OSError: it is taken on one of them, or all refuse for another reason. The text names address and cause.
    """
    addresses = dict.fromkeys(
        (info[0], info[4])
        for host in hosts
        for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    for _ in range(1 if port else _TRIES):
        chosen, held, errors = port, list[socket.socket](), list[OSError]()
        for family, where in addresses:
            one = socket.socket(family, socket.SOCK_STREAM)
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(where[0] != "::"))
                one.bind((where[0], chosen, *where[2:]))
            except OSError as error:
                one.close()
                errors.append(error)
            else:
                held.append(one)
                chosen = one.getsockname()[1]
        # A machine without IPv6 may still call ::1 localhost: one address is enough.
        if held and not any(error.errno == errno.EADDRINUSE for error in errors):
            return chosen, held
        for one in held:
            one.close()
    raise refusal(hosts[0], port, errors[0].errno or 0)


def refusal(host: str, port: int, number: int) -> OSError:
    """Return an error that names the address and the cause."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return OSError(number, f"cannot listen on {address}: {os.strerror(number)}")
