"""Notify a service manager such as systemd of this process's state: sd_notify(3), for Type=notify."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the socket named by NOTIFY_SOCKET; do nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name in the kernel's abstract name space
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as service_manager:
            service_manager.sendto(state.encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET=%s did not accept %s: %s", os.environ["NOTIFY_SOCKET"], state, error)
