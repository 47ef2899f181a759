"""From texts that name reducers to their addresses; DNS names are waited for."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reduction.discovery.address_forms import DnsName, dns_name, expand, is_dns, join_host_and_port
from reduction.discovery.schemes import cluster_of, may_change, scheme_of
from reduction.errors import ReducerUnavailable

log = logging.getLogger(__name__)

#: If a DNS name has too few addresses, it is looked up again after this many seconds.
DNS_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Resolved:
    """What texts stand for, without repetitions."""

    #: All addresses, as HOST:PORT.
    addresses: tuple[str, ...]
    #: Those of DNS names among them.
    of_names: tuple[str, ...] = ()
    #: Those of other texts that may stand for other reducers later.
    of_lists: tuple[str, ...] = ()


def resolve(
    texts: Sequence[str], timeout_s: float, warn_s: float, environ: Mapping[str, str] = os.environ
) -> Resolved:
    """Return all addresses that these texts stand for.

    The addresses of a name are sorted. This blocks while a name has too few addresses, and warns after
    `warn_s` seconds.

    Raises:
        ConfigError: see `cluster_of`.
        ReducerUnavailable: a name has too few addresses after `timeout_s` seconds.
    """
    resolved: dict[str, None] = {}
    of_names: dict[str, None] = {}
    of_lists: dict[str, None] = {}
    for text in texts:
        if is_dns(text):
            found = _wait_for_name(dns_name(text), timeout_s, warn_s)
            of_names.update(dict.fromkeys(found))
        elif scheme_of(text) is not None:
            found = cluster_of(text, environ).reducers
            of_lists.update(dict.fromkeys(found if may_change(text) else ()))
        else:
            found = expand(text)
        resolved.update(dict.fromkeys(found))
    return Resolved(tuple(resolved), tuple(of_names), tuple(of_lists))


def _wait_for_name(dns: DnsName, timeout_s: float, warn_s: float) -> tuple[str, ...]:
    started_at = time.monotonic()
    warn_at = started_at + warn_s
    while True:
        hosts, reason = set[str](), "too few addresses"
        try:
            answers = socket.getaddrinfo(dns.name, dns.port, type=socket.SOCK_STREAM)
            hosts = {str(answer[4][0]) for answer in answers}
        except socket.gaierror as error:
            reason = str(error)
        except UnicodeError:
            reason = "it is no host name"
        if len(hosts) >= dns.count:
            return tuple(join_host_and_port(host, dns.port) for host in sorted(hosts))
        now = time.monotonic()
        text = f"{dns.text}: {dns.name!r} has {len(hosts)} of {dns.count} addresses"
        if now >= started_at + timeout_s:
            raise ReducerUnavailable(f"{text} after {timeout_s:g} s: {reason}")
        if now >= warn_at:
            warn_at = float("inf")
            log.warning("waiting for %s: %s; giving up in %.0f s", text, reason, started_at + timeout_s - now)
        time.sleep(DNS_RETRY_S)
