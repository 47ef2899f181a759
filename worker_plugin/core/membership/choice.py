"""Which reducers take part if there are more than a configuration can name."""

from __future__ import annotations

from collections.abc import Sequence

from worker_plugin.core.link import Link


def fair_choice(links: Sequence[Link], count: int) -> tuple[Link, ...]:
    """Return at most `count` links, in their order, chosen from all hosts in turn.

    The processes of one host share its network, so leaving out some processes of each host costs less than
    leaving out all processes of a few hosts.
    """
    if len(links) <= count:
        return tuple(links)
    hosts: dict[str, list[Link]] = {}
    for link in links:
        hosts.setdefault(link.address.rpartition(":")[0], []).append(link)
    rounds = max(map(len, hosts.values()))
    by_turns = [of_host[turn] for turn in range(rounds) for of_host in hosts.values() if turn < len(of_host)]
    chosen = {link.id for link in by_turns[:count]}
    return tuple(link for link in links if link.id in chosen)
