"""Address of `reducer serve`: from the option, else from the platform, else on the loopback address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reduction.discovery.address_forms import join_host_and_port
from reduction.discovery.cluster import DEFAULT_PORT
from reduction.discovery.own_place import own_place

from reducer.config import DEFAULT_HOST, complete_address, split_address
from reducer.resources.ports import PortRange


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """HOST:PORT and its source."""

    bind: str
    #: Source of the address, such as "CLUSTER_SPEC"; None for an option or the default.
    platform: str | None = None
    #: Position among the reducers, and their number; None without a platform.
    position: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.platform is None or self.position is None:
            return self.bind
        number, count = self.position
        return f"{self.bind}, because {self.platform} says that this is reducer {number} of {count}"


def own_address(given: str | None, port_range: PortRange | None, environ: Mapping[str, str]) -> OwnAddress:
    """Return the address to serve.

    Args:
        given: the value of --bind, or None.
        port_range: its first port is used unless --bind names another.
        environ: only used without --bind.

    Raises:
        ConfigError: --bind or a platform's data is malformed, or this host is not a reducer according to
            the platform.
    """
    if given is not None:
        bind = complete_address(given)
        if port_range is None or split_address(bind)[1] != 0:
            return OwnAddress(bind)
        return OwnAddress(join_host_and_port(split_address(bind)[0], port_range.first))
    place = own_place(environ)
    if place is None:
        port = DEFAULT_PORT if port_range is None else port_range.first
        return OwnAddress(join_host_and_port(DEFAULT_HOST, port))
    cluster, source = place
    assert cluster.bind is not None
    assert cluster.index is not None
    host, port = split_address(cluster.bind)
    bind = join_host_and_port(host, port if port_range is None else port_range.first)
    return OwnAddress(bind, source, (cluster.index, len(cluster.reducers)))
