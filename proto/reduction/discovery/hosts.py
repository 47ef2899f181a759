"""A cluster that somebody has written down: which hosts have workers, and which have reducers.

A list has commas between its entries, and an entry may be a range such as `gpu-{0..3}`. A host that
is written as an IP address is served at exactly that address, one with a name at all addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import replace

from reduction.discovery.address_forms import check_address, expand, join_host_and_port
from reduction.discovery.cluster import Cluster, cluster_of_hosts
from reduction.errors import ConfigError

#: Whether an entry of a list stands for the present host.
IsOwn = Callable[[str], bool]


def hosts_in(name: str, text: str) -> tuple[str, ...]:
    """Return the hosts of a list.

    Args:
        name: of the setting, for errors.
        text: the list.

    Raises:
        ConfigError: an entry is not a host, or a host is there twice.
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
        workers: the list of the hosts with workers, in the order of the nodes.
        reducers: the list of those with reducers; may be empty.
        port: where reducers listen.
        is_own: tells which of the hosts this one is.

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
        raise ConfigError(
            f"this host is {own[0]!r} as well as {own[1]!r} of the lists: say which with --host"
        )
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
