"""A cluster given as two lists: the hosts with workers and the hosts with reducers.

Lists are separated by commas, and an entry may be a range such as `gpu-{0..3}`. A reducer host given as
an IP address is served at exactly that address, and one given by name at all addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import replace

from reduction.discovery.address_forms import check_address, expand, join_host_and_port
from reduction.discovery.cluster import Cluster, cluster_of_hosts
from reduction.errors import ConfigError

#: Returns whether an entry of a list stands for this host.
IsOwn = Callable[[str], bool]


def hosts_in(name: str, text: str) -> tuple[str, ...]:
    """Return the hosts of a list.

    Args:
        name: name of the setting, for errors.
        text: the list.

    Raises:
        ConfigError: an entry is not a host, or a host is listed twice.
    """
    found: list[str] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        bare = entry.removeprefix("[").removesuffix("]")
        try:
            check_address(join_host_and_port(bare, 1))
        except ConfigError:
            raise ConfigError(f"{name}: {entry!r} is not a host: write names without a port") from None
        found += expand(bare)
    if twice := [host for host in found if found.count(host) > 1]:
        raise ConfigError(f"{name} has {twice[0]!r} twice")
    return tuple(found)


def cluster_of_lists(workers: str, reducers: str, port: int, is_own: IsOwn) -> Cluster:
    """Return the cluster of two lists of hosts.

    Args:
        workers: the hosts with workers, in node order.
        reducers: the hosts with reducers; may be empty.
        port: port of the reducers.
        is_own: returns whether a host is this host.

    Raises:
        ConfigError: a list is malformed, there are no workers, a host is in both lists, or several
            entries stand for this host.
    """
    of_workers, of_reducers = hosts_in("--hosts", workers), hosts_in("--reducer-hosts", reducers)
    if not of_workers:
        raise ConfigError(f"--hosts {workers!r} names no host with workers")
    if both := [host for host in of_workers if host in of_reducers]:
        raise ConfigError(f"{both[0]!r} is in both --hosts and --reducer-hosts: a host has one role")
    own = [host for host in (*of_workers, *of_reducers) if is_own(host)]
    if len(own) > 1:
        raise ConfigError(f"this host is both {own[0]!r} and {own[1]!r} in the lists: choose one with --host")
    name = own[0] if own else None
    cluster = cluster_of_hosts("--hosts", of_reducers, port, of_workers, name)
    addresses = {host: join_host_and_port(host, port) for host in of_reducers}
    bind = addresses[name] if name in addresses and _is_ip(name) else cluster.bind
    return replace(cluster, reducers=tuple(addresses.values()), bind=bind)


def _is_ip(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False
