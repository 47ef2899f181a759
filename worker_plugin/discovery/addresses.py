"""Who names the reducers, the user or the platform; and DNS names among them, while a job runs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence

from reduction.discovery.address_forms import dns_name, is_dns, join_host_and_port
from reduction.discovery.platform import Named, named_by_platform
from reduction.discovery.schemes import split

from worker_plugin.config import PluginConfig

VARIABLE = "REDUCTION_REDUCERS"


def configured(config: PluginConfig, environ: Mapping[str, str] = os.environ) -> Named | None:
    """Return what the user or the platform says of the reducers, None if they say nothing.

    Raises:
        ConfigError: a platform's document is malformed, or two platforms name reducers.
    """
    if config.reducers is None:
        return named_by_platform(environ)
    # An argument that says the same as the variable is as good as the variable.
    is_variable = tuple(split(environ.get(VARIABLE, ""))) == config.reducers
    return Named(config.reducers, VARIABLE if is_variable else "the argument")


async def look_up(names: Sequence[str]) -> tuple[str, ...]:
    """Return all addresses that DNS names stand for now, without blocking the running loop.

    Raises:
        OSError: a name has no address, or no server answers.
    """
    loop, resolved = asyncio.get_running_loop(), dict[str, None]()
    for dns in map(dns_name, names):
        answers = await loop.getaddrinfo(dns.name, dns.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(answer[4][0]) for answer in answers})
        resolved.update(dict.fromkeys(join_host_and_port(host, dns.port) for host in hosts))
    return tuple(resolved)


def dns_names_in(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that are DNS names: their reducers may change while the job runs."""
    return tuple(address for address in addresses if is_dns(address))
