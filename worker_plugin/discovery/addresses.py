"""Who names the reducers, the user or the platform; and what may name others while a job runs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reduction.discovery.address_forms import dns_name, is_dns, join_host_and_port
from reduction.discovery.cluster import REDUCERS_VARIABLE, Cluster
from reduction.discovery.platform import Named, named_by_platform
from reduction.discovery.schemes import cluster_of, may_change, split
from reduction.errors import ConfigError

from worker_plugin.config import PluginConfig

log = logging.getLogger(__name__)


def configured(config: PluginConfig, environ: Mapping[str, str] = os.environ) -> Named | None:
    """Return what the user or the platform says of the reducers, None if they say nothing.

    Raises:
        ConfigError: a platform's document is malformed, or two platforms name reducers.
    """
    if config.reducers is None:
        return named_by_platform(environ)
    # An argument that says the same as the variable is as good as the variable.
    is_variable = tuple(split(environ.get(REDUCERS_VARIABLE, ""))) == config.reducers
    return Named(config.reducers, REDUCERS_VARIABLE if is_variable else "the argument")


async def look_up(names: Sequence[str]) -> tuple[str, ...]:
    """Return all addresses that DNS names stand for now, without blocking the running loop.

    Raises:
        OSError: a name has no address, or no server answers.
    """
    loop, resolved = asyncio.get_running_loop(), dict[str, None]()
    for dns in map(dns_name, names):
        answers = await loop.getaddrinfo(dns.name, dns.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(answer[4][0]) for answer in answers})
        resolved.update(dict.fromkeys(join_host_and_port(host, dns.port) for host in hosts))
    return tuple(resolved)


def dns_names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Return those of these texts that are DNS names."""
    return tuple(text for text in texts if is_dns(text))


def lists_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Return those of these texts that are no DNS names, and may stand for other reducers later."""
    return tuple(text for text in texts if may_change(text) and not is_dns(text))


@dataclass(frozen=True, slots=True)
class Sources:
    """What may name other reducers while a job runs, and what it named at the start."""

    dns_names: tuple[str, ...] = ()
    dns_addresses: tuple[str, ...] = ()
    #: Files, pools of Ray, and texts of installed packages. Only rank 0 of a job asks them again, which in
    #: hierarchical mode is a rank of the first node for each rail.
    lists: tuple[str, ...] = ()
    list_addresses: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """All that they named at the start."""
        return (*self.dns_addresses, *self.list_addresses)


NO_SOURCES = Sources()


async def _in_thread(find: Callable[[str], Cluster], text: str) -> Cluster:
    """Return what a function returns that may block.

    It runs on a thread that does not keep the process alive, as those of an executor would: a file of a server
    that is gone may block for ever.

    Raises:
        ConfigError: the function has raised it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Cluster] = loop.create_future()

    def ask() -> None:
        try:
            cluster = find(text)
        except Exception as error:  # of a bug, too: whoever waits must go on
            failure = error if isinstance(error, ConfigError) else ConfigError(f"{text}: {error!r}")
            loop.call_soon_threadsafe(answer.set_exception, failure)
        else:
            loop.call_soon_threadsafe(answer.set_result, cluster)

    threading.Thread(target=ask, name="reduction-sources", daemon=True).start()
    return await answer


class Finder:
    """Asks the sources again, on a running loop. A source that fails still names what it named last."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._last_of_lists = sources.list_addresses
        self._complaint = ""
        self._is_busy = False

    async def find(self, *, everything: bool) -> tuple[str, ...] | None:
        """Return the addresses that all sources name now, None if they cannot be told.

        Args:
            everything: whether to ask all sources, and not only the name service.
        """
        if self._is_busy:  # a pool of Ray may take a minute to answer
            return None
        self._is_busy = True
        try:
            if everything and self._sources.lists:
                await self._ask_lists()
            return (*await look_up(self._sources.dns_names), *self._last_of_lists)
        except OSError:
            return None
        finally:
            self._is_busy = False

    async def _ask_lists(self) -> None:
        try:
            clusters = [await _in_thread(cluster_of, text) for text in self._sources.lists]
        except ConfigError as error:
            if str(error) != self._complaint:
                log.warning("reducers are not looked for: %s", error)
            self._complaint = str(error)
            return
        self._complaint = ""
        found = dict.fromkeys(address for cluster in clusters for address in cluster.reducers)
        self._last_of_lists = tuple(found)
