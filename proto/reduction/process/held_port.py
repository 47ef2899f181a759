"""Hold ports for a server that this process starts and restarts.

While a server is down, any process could listen on its port, and its clients would show their tokens there. So
its parent also binds the port, without listening. Linux then only lets processes of the same user bind it that
also set SO_REUSEPORT, as the server does. Connections go to the listening processes (socket(7)).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

#: Number of ports to try until one is free on all addresses of the host.
_TRIES = 16


def hold(hosts: Sequence[str], port: int = 0) -> tuple[int, list[socket.socket]]:
    """Bind a port on all addresses of some hosts; 0 picks a free one. Return it and the sockets that hold it.

    Raises:
        OSError: the port is taken on one address, or all addresses fail for another reason. The text names address
            and cause.
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
        # A machine without IPv6 may still resolve localhost to ::1, so one address is enough.
        if held and not any(error.errno == errno.EADDRINUSE for error in errors):
            return chosen, held
        for one in held:
            one.close()
    raise refusal(hosts[0], port, errors[0].errno or 0)


def refusal(host: str, port: int, number: int) -> OSError:
    """Return an error that names the address and the cause."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return OSError(number, f"cannot listen on {address}: {os.strerror(number)}")
