"""The addresses of the reducers: which setting or platform names them, and DNS names among them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence

from reduction.errors import ConfigError, ReducerUnavailable

from worker_plugin.config import PluginConfig
from worker_plugin.settings.address_forms import DnsName, check_addresses, dns_name, expand, is_dns

log = logging.getLogger(__name__)

#: If a DNS name has too few addresses, it is looked up again after this many seconds.
DNS_RETRY_S = 0.5


def configured(config: PluginConfig, environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Return the addresses that the user or the platform has given, None if there are none.

    Raises:
        ConfigError: CLUSTER_SPEC names reducers, but not in the form that Vertex AI writes.
    """
    return config.reducers or _cluster_spec(environ.get("CLUSTER_SPEC"))


def resolve(addresses: Sequence[str], config: PluginConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all addresses that these stand for, as HOST:PORT; and among them those of DNS names.

    No address is repeated, and the addresses of a name are sorted. This blocks while a name has too
    few addresses, and warns after `stall_warn_s`.

    Raises:
        ReducerUnavailable: a name has too few addresses after `join_timeout_s`.
    """
    resolved: dict[str, None] = {}
    looked_up: dict[str, None] = {}
    for address in addresses:
        hosts = _wait_for_name(dns_name(address), config) if is_dns(address) else expand(address)
        resolved.update(dict.fromkeys(hosts))
        looked_up.update(dict.fromkeys(hosts if is_dns(address) else ()))
    return tuple(resolved), tuple(looked_up)


async def look_up(names: Sequence[str]) -> tuple[str, ...]:
    """Return all addresses that DNS names stand for now, without blocking the running loop.

    Raises:
        OSError: a name has no address, or no server answers.
    """
    loop, resolved = asyncio.get_running_loop(), dict[str, None]()
    for dns in map(dns_name, names):
        answers = await loop.getaddrinfo(dns.name, dns.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(answer[4][0]) for answer in answers})
        resolved.update(dict.fromkeys(host_and_port(host, dns.port) for host in hosts))
    return tuple(resolved)


def dns_names_in(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that are DNS names: their reducers may change while the job runs."""
    return tuple(address for address in addresses if is_dns(address))


def host_and_port(host: str, port: int) -> str:
    """Return HOST:PORT for an IP address, with brackets around one of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _wait_for_name(dns: DnsName, config: PluginConfig) -> list[str]:
    started_at = time.monotonic()
    warn_at = started_at + config.stall_warn_s
    while True:
        hosts, reason = set[str](), "too few addresses"
        try:
            answers = socket.getaddrinfo(dns.name, dns.port, type=socket.SOCK_STREAM)
            hosts = {str(answer[4][0]) for answer in answers}
        except socket.gaierror as error:
            reason = str(error)
        if len(hosts) >= dns.count:
            return [host_and_port(host, dns.port) for host in sorted(hosts)]
        now = time.monotonic()
        text = f"{dns.text}: {dns.name!r} has {len(hosts)} of {dns.count} addresses"
        if now >= started_at + config.join_timeout_s:
            raise ReducerUnavailable(f"{text} after {config.join_timeout_s:g} s: {reason}")
        if now >= warn_at:
            warn_at = float("inf")
            left = started_at + config.join_timeout_s - now
            log.warning("waiting for %s: %s; giving up in %.0f s", text, reason, left)
        time.sleep(DNS_RETRY_S)


def _cluster_spec(text: str | None) -> tuple[str, ...] | None:
    """Return the reducers of Vertex AI's CLUSTER_SPEC: its third worker pool, as for Google's own.

    https://cloud.google.com/vertex-ai/docs/training/distributed-training#reduce_training_time_with_reduction_server
    """
    if not text:
        return None
    try:
        pool = json.loads(text)["cluster"].get("workerpool2")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"CLUSTER_SPEC is not what Vertex AI writes ({error!r}): {text[:200]}") from None
    if not pool:
        return None
    if not isinstance(pool, list) or not all(isinstance(address, str) for address in pool):
        raise ConfigError(f"CLUSTER_SPEC: workerpool2 is not a list of addresses: {pool!r}")
    check_addresses(tuple(pool))
    return tuple(pool)
