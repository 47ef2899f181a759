"""Resolve strings that name reducers to addresses, and wait for DNS names."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

from reduction.blocking import begin, look_up
from reduction.discovery.address_forms import DnsName, dns_name, expand, is_dns, join_host_and_port
from reduction.discovery.schemes import cluster_of, may_change, scheme_of
from reduction.errors import ReducerUnavailable

log = logging.getLogger(__name__)

#: If a DNS name has too few addresses, it is looked up again after this many seconds. A name server has at
#: least this long to answer.
DNS_RETRY_S = 0.5

#: The strings that may later stand for other reducers (`may_change`), each with its addresses at the start.
Sources: TypeAlias = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The addresses that strings stand for."""

    #: All addresses as HOST:PORT, without duplicates.
    addresses: tuple[str, ...]
    sources: Sources


def resolve(
    texts: Sequence[str], timeout_s: float, warn_s: float, environ: Mapping[str, str] = os.environ
) -> Resolved:
    """Return all addresses that these strings stand for.

    The addresses of a name are sorted. This blocks while a name has too few addresses, and warns after
    `warn_s` seconds.

    Raises:
        ConfigError: see `cluster_of`.
        ReducerUnavailable: a name has too few addresses after `timeout_s` seconds, or the source of the
            reducers has not answered by then.
    """
    named: dict[str, tuple[str, ...]] = {}
    for text in texts:
        if is_dns(text):
            named[text] = _wait_for_name(dns_name(text), timeout_s, warn_s)
        elif scheme_of(text) is not None:
            asked = begin(partial(cluster_of, text, environ))
            if not wait([asked], timeout_s).done:
                raise ReducerUnavailable(f"{text}: no answer within {timeout_s:g} s")
            named[text] = asked.result().reducers
        else:
            named[text] = expand(text)
    addresses = dict.fromkeys(chain.from_iterable(named.values()))
    return Resolved(tuple(addresses), {text: found for text, found in named.items() if may_change(text)})


def _wait_for_name(dns: DnsName, timeout_s: float, warn_s: float) -> tuple[str, ...]:
    started_at = time.monotonic()
    give_up_at, warn_at = started_at + timeout_s, started_at + warn_s
    hosts, reason = set[str](), "no name server has answered"
    lookup = look_up(dns.name, dns.port)
    while True:
        left = min(warn_at, give_up_at) - time.monotonic()
        if wait([lookup], max(DNS_RETRY_S, left)).done:
            hosts, reason = set[str](), "too few addresses"
            try:
                hosts = {str(answer[4][0]) for answer in lookup.result()}
            except socket.gaierror as error:
                reason = str(error)
            except UnicodeError:
                reason = "it is not a host name"
        if len(hosts) >= dns.count:
            return tuple(join_host_and_port(host, dns.port) for host in sorted(hosts))
        now = time.monotonic()
        text = f"{dns.text}: {dns.name!r} has {len(hosts)} of {dns.count} addresses"
        if now >= give_up_at:
            raise ReducerUnavailable(f"{text} after {timeout_s:g} s: {reason}")
        if now >= warn_at:
            warn_at = float("inf")
            log.warning("waiting for %s: %s; giving up in %.0f s", text, reason, give_up_at - now)
        if lookup.done():
            time.sleep(DNS_RETRY_S)
            lookup = look_up(dns.name, dns.port)
