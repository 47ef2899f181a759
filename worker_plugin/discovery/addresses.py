"""From settings and environment to a list of HOST:PORT."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping

from reduction.errors import ConfigError, ReducerUnavailable

from worker_plugin.config import PluginConfig, check_addresses

#: How often a DNS name that has no address yet is asked for again, in seconds.
DNS_RETRY_S = 0.5


def configured(config: PluginConfig, environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Return what the user or the platform says, or None if nobody says anything.

    Raises:
        ConfigError: CLUSTER_SPEC is there and names reducers, but is not what Vertex AI writes.
    """
    return config.reducers or _cluster_spec(environ.get("CLUSTER_SPEC"))


def resolve(addresses: tuple[str, ...], timeout_s: float) -> tuple[str, ...]:
    """Replace each `dns:NAME:PORT` by all addresses of the name, sorted, without repetition.

    Raises:
        ReducerUnavailable: a name has no address after `timeout_s`.
    """
    found: dict[str, None] = {}
    for address in addresses:
        if address.startswith("dns:"):
            found.update(dict.fromkeys(_lookup(address, timeout_s)))
        else:
            found[address] = None
    return tuple(found)


def _lookup(address: str, timeout_s: float) -> list[str]:
    name, _, port = address.removeprefix("dns:").rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            answers = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
            hosts = sorted({str(answer[4][0]) for answer in answers})
            return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        except socket.gaierror as error:
            if time.monotonic() >= deadline:
                raise ReducerUnavailable(
                    f"{address}: no address for {name!r} after {timeout_s:g} s: {error}"
                ) from None
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
