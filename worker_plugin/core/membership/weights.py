"""Each reducer's share of every collective: the best split among machines, as whole numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence

from reduction.model import Place
from reduction.shares import Machine, split

from worker_plugin.core.link import Link

#: The weight of the reducer with the largest share, before the weights are made as small as possible.
SCALE = 1000
#: Remote reducers get this fraction of their best share if there are others beside them. A share that is too large
#: makes their links the slowest ones. One that is too small by the same amount costs less.
CAUTION = 0.95
#: Fraction of a link's traffic that is payload: 1448 bytes of each frame's 1538, headers and gaps included.
PAYLOAD_SHARE = 1448 / 1538
#: Reducers on machines with ranks get no share if that would save less than this fraction of the time.
GAIN_MIN = 0.03


def weights(links: Sequence[Link]) -> tuple[int, ...]:
    """Return the weights of the reducers at the end of these links; 0 for one without a share.

    Args:
        links: to reducers that all ranks have reached; at least one.
    """
    hosts, machines = _machines(links)
    share = dict(zip(machines, _shares(list(machines.values())), strict=True))
    parts = [share[host] / machines[host].reducers for host in hosts]
    scaled = [round(SCALE * part / max(parts)) for part in parts]
    divisor = math.gcd(*scaled)
    return tuple(weight // divisor for weight in scaled)


def said_rate(links: Sequence[Link]) -> float:
    """Return how fast the links of all hosts carry collectives; infinite unless every host reports its link's speed.

    Args:
        links: to reducers that all ranks have reached; at least one.

    Returns:
        Payload bytes per second, of every collective.
    """
    places = [*(link.place for link in links), *(peer.place for peer in links[0].peers.values())]
    if not all(place.link_mbit for place in places):
        return math.inf
    seconds_per_byte = split(list(_machines(links)[1].values())).seconds_per_byte  # of Mbit/s
    return PAYLOAD_SHARE * 1e6 / 8 / seconds_per_byte if seconds_per_byte else math.inf


def with_share(links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links whose reducers get a share when these reducers form an epoch."""
    if not links:
        return ()
    return tuple(link for link, weight in zip(links, weights(links), strict=True) if weight)


def _machines(links: Sequence[Link]) -> tuple[list[Hashable], dict[Hashable, Machine]]:
    """Return the host of each of these reducers, and all machines of the job by their hosts."""
    peers = links[0].peers.values()
    # A process that does not report its location counts as being on its own host.
    hosts: list[Hashable] = [link.place.host or ("reducer", link.id) for link in links]
    homes: list[Hashable] = [peer.place.host or ("rank", peer.rank) for peer in peers]
    reducers, ranks = Counter(hosts), Counter(homes)
    rates = _rates((*hosts, *homes), [*(link.place for link in links), *(peer.place for peer in peers)])
    names = dict.fromkeys((*hosts, *ranks))
    return hosts, {name: Machine(ranks[name], reducers[name], rates[name]) for name in names}


def _shares(machines: Sequence[Machine]) -> Sequence[float]:
    """Return each machine's fraction of every collective."""
    best = split(machines)
    if not any(machine.is_remote for machine in machines):
        return best.shares
    remote_only = split([m if m.is_remote else Machine(m.ranks, 0, m.rate) for m in machines])
    if best.seconds_per_byte > (1 - GAIN_MIN) * remote_only.seconds_per_byte:
        return remote_only.shares
    near = sum(share for share, machine in zip(best.shares, machines, strict=True) if machine.is_colocated)
    rest = CAUTION * (1 - near)
    more = (1 - rest) / near
    return [
        share * (more if machine.is_colocated else CAUTION)
        for share, machine in zip(best.shares, machines, strict=True)
    ]


def _rates(hosts: Sequence[Hashable], places: Sequence[Place]) -> dict[Hashable, float]:
    """Return the speed of each host's link, in any unit. Unknown speeds are set to the median of the others."""
    known: dict[Hashable, float] = {}
    for host, place in zip(hosts, places, strict=True):
        if place.link_mbit:
            known[host] = min(place.link_mbit, known.get(host, math.inf))
    usual = statistics.median(known.values()) if known else 1.0
    return {host: known.get(host, usual) for host in hosts}
