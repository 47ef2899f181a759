"""The role of this host in a cluster, from the platform or from lists of hosts on the command line.

The first of these sources that is present counts:

    --cluster TEXT             a string such as slurm:1:50051, which names reducers and knows the workers
    --hosts, --reducer-hosts   lists of hosts
    REDUCTION_REDUCERS         if it is one text of a platform; addresses alone assign no roles
    the platform               Vertex AI's CLUSTER_SPEC, SageMaker's resourceconfig.json
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from reduction.discovery.cluster import DEFAULT_PORT, REDUCERS_VARIABLE, Cluster
from reduction.discovery.hosts import cluster_of_lists
from reduction.discovery.platforms.automatic import cluster_of_platform
from reduction.discovery.schemes import cluster_of, scheme_of, split
from reduction.errors import ConfigError

from reducer.binding import is_local

#: Schemes that name reducers but do not know the workers.
_WITHOUT_ROLES = ("file", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The cluster settings of the command line, with None for missing ones."""

    cluster: str | None = None
    hosts: str | None = None
    reducer_hosts: str | None = None
    port: int | None = None
    #: The name of this host in the lists.
    host: str | None = None


def find(request: Request, environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster with this host's role in it, or None if no source describes one.

    Raises:
        ConfigError: the sources are malformed or contradictory, or this host has no role.
    """
    cluster = _find(request, environ)
    if cluster is None:
        return None
    if cluster.role is None or cluster.index is None:
        raise ConfigError(
            f"{cluster.source} gives this host ({request.host or socket.gethostname()}) no role: workers are "
            f"{', '.join(cluster.workers) or 'none'}, reducers {', '.join(cluster.reducers) or 'none'}"
        )
    return cluster


def _find(request: Request, environ: Mapping[str, str]) -> Cluster | None:
    has_lists = request.hosts is not None or request.reducer_hosts is not None
    if not has_lists and (request.port is not None or request.host is not None):
        raise ConfigError("--port and --host belong to --hosts and --reducer-hosts, which are not given")
    if request.cluster is not None and has_lists:
        raise ConfigError(f"--cluster {request.cluster} and --hosts were both given: choose one")
    if request.cluster is not None:
        return _of_text("--cluster", request.cluster, environ)
    if has_lists:
        port = DEFAULT_PORT if request.port is None else request.port
        return cluster_of_lists(
            request.hosts or "", request.reducer_hosts or "", port, lambda host: is_own(host, request.host)
        )
    if named := split(environ.get(REDUCERS_VARIABLE, "")):
        scheme = scheme_of(named[0])
        if len(named) > 1 or scheme is None or scheme in _WITHOUT_ROLES:
            return None
        return _of_text(REDUCERS_VARIABLE, named[0], environ)
    cluster = cluster_of_platform(environ)
    # A job of one host is not a cluster.
    return None if cluster is None or (len(cluster.workers) < 2 and not cluster.reducers) else cluster


def _of_text(source: str, text: str, environ: Mapping[str, str]) -> Cluster:
    if scheme_of(text) is None:
        raise ConfigError(f"{source} {text!r} names no platform: use --hosts and --reducer-hosts")
    cluster = cluster_of(text, environ)
    if not cluster.workers:
        raise ConfigError(
            f"{source} {text!r} does not say which hosts have workers: use --hosts and --reducer-hosts"
        )
    return cluster


def is_own(host: str, given: str | None) -> bool:
    """Return whether a host of a list is this one.

    Args:
        host: a name or an address.
        given: the user's name for this host; None to compare names and addresses.
    """
    if given is not None:
        return host == given
    if _short(host) == _short(socket.gethostname()):
        return True
    with contextlib.suppress(OSError, UnicodeError):
        return any(is_local(*info[::4]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM))
    return False


def _short(host: str) -> str:
    """Return the first part of a host's name, or all of an IP address."""
    first = host.partition(".")[0]
    return host if first.isdecimal() or ":" in host else first
