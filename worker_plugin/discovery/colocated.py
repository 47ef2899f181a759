"""The reducers on the ranks' hosts: who starts them, where they listen, and how all ranks learn of them.

    rank 0        decides whether there are any, and broadcasts who starts them and a token
    leaders       the lowest rank of every host starts a reducer there, and publishes its address
    all ranks     wait for that, and join these reducers like any others

Without dedicated reducers, a job's ranks do the work of a ring in this way. With a few, these get as much as
their links can carry (`reduction.shares`). Only the ranks know the token, so no other process can join, although
the reducers listen on the network.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reduction.blocking import look_up
from reduction.errors import ConfigError, ReducerUnavailable, ReductionError, from_name
from reduction.process.place import address_of_interface
from reduction.shares import Machine, ring_time, split
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.core.words import some_of
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.embedded import EmbeddedReducer, User, give_back, lend
from worker_plugin.discovery.waiting_for_ranks import wait_for

log = logging.getLogger(__name__)

#: With more hosts than this, streams between all of them would cost more than they gain.
HOSTS_MAX = 128
#: Roughly the rate of one process in Mbit/s. A host with a faster link gets several processes.
MBIT_PER_PROCESS = 5000
#: Maximum number of processes per host, whatever its link carries, because they use the training's cores.
PROCESSES_MAX = 8
#: An unassigned address (RFC 5737), whose route is the route to the outside.
_OUTSIDE = "192.0.2.1"
#: The variables that name the interface for torch's own collectives.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_OK = "ok"


@dataclass(frozen=True, slots=True)
class Colocation:
    """Rank 0's decision that hosts of ranks have reducers."""

    #: The rank on each host that starts them.
    leaders: tuple[int, ...]
    token: str


def leaders_of(hosts: Mapping[int, str]) -> tuple[int, ...]:
    """Return the lowest rank of each host; `hosts` maps ranks to hosts."""
    return tuple(sorted({host: rank for rank, host in sorted(hosts.items(), reverse=True)}.values()))


def is_needed(config: PluginConfig, hosts: int, reducers: Sequence[str] | None) -> bool:
    """Return whether hosts of ranks should have reducers, as decided by rank 0's settings.

    Args:
        config: rank 0's settings.
        hosts: number of hosts of the ranks.
        reducers: the addresses that rank 0 was given, or None.

    Raises:
        ConfigError: there are too many hosts.
    """
    if not hosts or (config.colocated is None and reducers is not None):
        return False  # a rank that is alone has no other rank to tell
    remote = hosts_in(reducers or ())
    if config.colocated != "always" and (hosts == 1 or remote >= hosts):
        return False  # they would get no share
    if hosts <= HOSTS_MAX:
        return True
    if config.colocated == "always" or not remote:
        raise ConfigError(
            f"{hosts} hosts are too many for a reducer on each; the limit is {HOSTS_MAX}: start `reducer serve` on "
            f"separate hosts, and pass reducers="
        )
    return False


def advise(hosts: int, reducers: Sequence[str]) -> None:
    """Warn if these few reducers are slower than a ring, assuming that all links are equal.

    Args:
        hosts: number of hosts of the ranks.
        reducers: the addresses of all reducers.
    """
    remote = hosts_in(reducers)
    machines = [Machine(1, 0)] * hosts + [Machine(0, 1)] * remote
    if hosts > 1 and (slower := split(machines).seconds_per_byte / ring_time(machines)) > 1:
        text = "%d hosts with reducers for %d hosts with ranks may take %.1f times as long as a ring: %s"
        log.warning(text, remote, hosts, slower, "with colocated='auto' the ranks' hosts would help")


def hosts_in(addresses: Sequence[str]) -> int:
    """Return the number of hosts of these addresses, HOST:PORT."""
    return len({address.rpartition(":")[0] for address in addresses})


def start(
    config: PluginConfig, colocation: Colocation, store: BoundedStore, key: str, rank: int, user: User
) -> list[EmbeddedReducer]:
    """Start the reducers of this host, if this rank is its leader, and tell all ranks; return the reducers.

    Reducers that another job of this process has started are reused.

    Raises:
        ReductionError: they did not start, or the host's address is unknown.
    """
    if rank not in colocation.leaders:
        return []
    started: list[EmbeddedReducer] = []
    try:
        host = config.colocated_host or own_address(config.join_timeout_s)
        for _ in range(min(max(1, round(config.link_mbit / MBIT_PER_PROCESS)), PROCESSES_MAX)):
            started.append(lend(user, host, colocation.token, config.tls))
    except Exception as error:  # whatever the error is, the other ranks must not wait for this host
        give_back(user, started)
        failure = error if isinstance(error, ReductionError) else ReducerUnavailable(repr(error))
        text = f"rank {rank} ({socket.gethostname()}): {failure}"
        store.set(f"{key}/{rank}", f"{type(failure).__name__} {text}")
        raise failure from error
    store.set(f"{key}/{rank}", " ".join([_OK, *(reducer.address for reducer in started)]))
    return started


def addresses_of(
    config: PluginConfig, colocation: Colocation, store: BoundedStore, key: str
) -> tuple[str, ...]:
    """Return the addresses of all these reducers, in the order of their hosts' leaders.

    Raises:
        ReductionError: they did not start on another host, or see `wait_for`.
    """
    missing = set(colocation.leaders)

    def look(raw: Store) -> str:
        missing.difference_update([rank for rank in missing if raw.check([f"{key}/{rank}"])])
        names = ", ".join(some_of([str(rank) for rank in sorted(missing)]))
        return f"ranks {names}, which start the reducers of their hosts," if missing else ""

    wait_for(store, look, config)
    found: list[str] = []
    for rank in colocation.leaders:
        kind, _, text = store.get(f"{key}/{rank}").partition(" ")
        if kind != _OK:
            raise from_name(kind, text)
        found += text.split()
    return tuple(found)


def own_address(limit_s: float) -> str:
    """Return the address at which other hosts of the job can reach this one.

    It belongs to the interface configured for torch's collectives, or else to the route to the launcher's
    MASTER_ADDR or to the outside.

    Args:
        limit_s: how long a name server may take to answer, in seconds.

    Raises:
        ConfigError: none of these is known.
    """
    # NCCL's "^a,b" means all interfaces except these, and "=a" means exactly this one.
    names = [name for variable in _INTERFACES if (name := os.environ.get(variable, ""))]
    used = [name.removeprefix("=").split(",")[0] for name in names if not name.startswith("^")]
    avoided = {each for name in names if name.startswith("^") for each in name[1:].split(",")}
    candidates = [address_of_interface(name) for name in used]
    candidates += [
        _address_towards(host, limit_s) for host in (os.environ.get("MASTER_ADDR"), _OUTSIDE) if host
    ]
    candidates += [address_of_interface(name) for _, name in socket.if_nameindex() if name not in avoided]
    for address in candidates:
        if address is not None and not address.startswith("127.") and address != "::1":
            return address
    raise ConfigError(
        f"{socket.gethostname()} has no address at which other hosts could reach its reducer: "
        f"set colocated_host= or REDUCTION_COLOCATED_HOST to one"
    )


def _address_towards(host: str, limit_s: float) -> str | None:
    """Return the local address of the route to a host. Nothing is sent."""
    try:
        family, *_, there = look_up(host, 9).result(limit_s)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    # TimeoutError is an OSError. A name with an overlong part raises UnicodeError.
    except (OSError, UnicodeError):
        return None
