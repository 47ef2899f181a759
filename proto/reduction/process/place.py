"""The place of this process in a form that peers can compare: its host, and the rate of the host's link."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import struct

from reduction.errors import ConfigError
from reduction.limits import ID_BYTES, LINK_MBIT_MAX

_LINK = re.compile(r"(\d+(?:\.\d+)?)\s*([mgt])(?:bit(?:/s)?|bps)?", re.IGNORECASE)
_MBIT = {"m": 1, "g": 1_000, "t": 1_000_000}
#: From linux/sockios.h.
_SIOCGIFADDR = 0x8915


def loopback_id() -> str:
    """Return a string that two processes share if and only if they can reach each other on 127.0.0.1."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


def local_socket(incarnation: bytes) -> str:
    """Return the name of the UNIX socket of a reducer's data port on its own host.

    It is an abstract socket (unix(7)), which belongs to the network namespace, like 127.0.0.1, and not to a
    file system.
    """
    return f"\0reduction-server-{incarnation.hex()}"


def link_mbit(name: str, text: str) -> int:
    """Return the Mbit/s of a string such as 25G, 2.5G, 100M or 25Gbit/s; units are powers of 1000.

    Args:
        name: name of the setting, for the error.
        text: value of the setting.

    Raises:
        ConfigError: `text` does not have this form, or is outside the limits.
    """
    match = _LINK.fullmatch(text.strip())
    mbit = 0 if match is None else round(float(match[1]) * _MBIT[match[2].lower()])
    if not 1 <= mbit <= LINK_MBIT_MAX:
        raise ConfigError(
            f"{name} is {text!r}; it must be the rate of a link in its slower direction, such as 25G for "
            f"25 Gbit/s or 100M, from 1M to {LINK_MBIT_MAX // 1_000_000}T"
        )
    return mbit


def address_of_interface(name: str) -> str | None:
    """Return the IPv4 address of a network interface, or None if it has none or does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def own_host() -> bytes:
    """Return a hash of `loopback_id` with ID_BYTES for the wire, which should not show a boot's identity."""
    return hashlib.blake2b(loopback_id().encode(), digest_size=ID_BYTES).digest()
