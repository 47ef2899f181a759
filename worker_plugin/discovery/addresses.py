"""The sources of reducer addresses, the user or the platform, and those that may change while a job runs."""

from __future__ import annotations

import logging
import os
from asyncio import wrap_future
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from reduction.blocking import begin
from reduction.blocking import look_up as look_up_host
from reduction.discovery.address_forms import dns_name, is_dns, join_host_and_port
from reduction.discovery.cluster import REDUCERS_VARIABLE
from reduction.discovery.platforms.automatic import Named, named_by_platform
from reduction.discovery.resolve import Sources
from reduction.discovery.schemes import cluster_of, split
from reduction.errors import ConfigError

from worker_plugin.config import PluginConfig

log = logging.getLogger(__name__)


def configured(config: PluginConfig, environ: Mapping[str, str] = os.environ) -> Named | None:
    """Return the reducers that the user or the platform names, or None if neither names any.

    Raises:
        ConfigError: a platform's document is malformed, or two platforms name reducers.
    """
    if config.reducers is None:
        return named_by_platform(environ)
    # An argument equal to the variable counts as the variable.
    is_variable = tuple(split(environ.get(REDUCERS_VARIABLE, ""))) == config.reducers
    return Named(config.reducers, REDUCERS_VARIABLE if is_variable else "the argument")


async def look_up(names: Sequence[str]) -> tuple[str, ...]:
    """Return all addresses that DNS names currently resolve to, without blocking the running loop.

    Raises:
        OSError: a name has no address, or no server answers.
    """
    resolved = dict[str, None]()
    for dns in map(dns_name, names):
        answers = await wrap_future(look_up_host(dns.name, dns.port))
        hosts = sorted({str(answer[4][0]) for answer in answers})
        resolved.update(dict.fromkeys(join_host_and_port(host, dns.port) for host in hosts))
    return tuple(resolved)


class Finder:
    """Queries the sources again, on a running loop. A failing source keeps its last answer.

    Args:
        sources: the sources to query.
    """

    def __init__(self, sources: Sources) -> None:
        self._dns_names = [text for text in sources if is_dns(text)]
        #: Last answers of files, Ray pools and strings of installed packages. Only rank 0 of a job queries them again;
        #: in hierarchical mode that is a rank of the first node for each rail.
        self._lists = {text: named for text, named in sources.items() if not is_dns(text)}
        self._complaint = ""
        self._is_busy = False

    async def find(self, *, everything: bool) -> tuple[str, ...] | None:
        """Return the addresses that all sources currently name, or None if they cannot be determined.

        Args:
            everything: whether to query all sources, and not only the name service.
        """
        if self._is_busy:  # a Ray pool may take a minute to answer
            return None
        self._is_busy = True
        try:
            if everything:
                await self._ask_lists()
            found = chain(await look_up(self._dns_names), *self._lists.values())
            return tuple(dict.fromkeys(found))
        except (OSError, RuntimeError):  # RuntimeError: no more threads can be created
            return None
        finally:
            self._is_busy = False

    async def _ask_lists(self) -> None:
        lists, asked = dict[str, tuple[str, ...]](), ""
        try:
            for asked in self._lists:
                lists[asked] = (await wrap_future(begin(partial(cluster_of, asked)))).reducers
        except Exception as failure:  # even if it is a bug: callers that wait must go on
            error = failure if isinstance(failure, ConfigError) else ConfigError(f"{asked}: {failure!r}")
            if str(error) != self._complaint:
                log.warning("cannot look up the reducers: %s", error)
            self._complaint = str(error)
            return
        self._complaint, self._lists = "", lists
