"""Where ranks and reducers meet: a job's name and addresses, chosen by rank 0 for all."""

from __future__ import annotations

import dataclasses
import json
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reduction.client.access import OPEN, Access
from reduction.discovery.resolve import Sources, resolve
from reduction.errors import ConfigError
from reduction.model import NamedReducers
from reduction.text import load_json
from reduction.values import from_json

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import colocated
from worker_plugin.discovery.addresses import configured
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.colocated import Colocation
from worker_plugin.discovery.embedded import EmbeddedReducer, User, give_back, lend
from worker_plugin.discovery.nodes import Locality
from worker_plugin.transports.security import access_of, private_access

log = logging.getLogger(__name__)

#: Token of the reducers on the ranks' hosts, for all jobs in which this process is rank 0, so that they can share them.
_TOKEN = secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What rank 0 must know about a rank before it chooses."""

    #: Two ranks have the same value exactly if they can reach each other on the loopback address.
    host_id: str
    #: The addresses named by this rank's settings, or None.
    reducers: list[str] | None
    #: None if this rank has no `local_group`.
    locality: Locality | None
    #: This rank's setting.
    colocated: str | None = None

    @classmethod
    def from_json(cls, text: str) -> RankInfo:
        """Return the rank's information from the string of `to_json`."""
        fields = load_json(text)
        locality = fields.pop("locality")
        return cls(**fields, locality=None if locality is None else Locality(**locality))

    def to_json(self) -> str:
        """Return a string for the store."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Everything a rank needs to join its job at the reducers."""

    job: str
    addresses: tuple[str, ...]
    access: Access = OPEN
    #: The private reducer that this rank has started for all ranks, all of which are on its host.
    embedded: EmbeddedReducer | None = None
    #: Who starts the reducers on the ranks' hosts; None if there are none.
    colocation: Colocation | None = None
    #: The addresses of these reducers, once they are running, and the credentials for them.
    colocated: tuple[str, ...] = ()
    colocated_access: Access = OPEN
    #: The ones that this rank has started.
    started: tuple[EmbeddedReducer, ...] = ()
    #: The job's name and group under which this rank has borrowed them. A rail has another name than the job.
    user: User = ("", "")
    sources: Sources = field(default_factory=dict)
    #: Who named the reducers, for the line that rank 0 shows, or "" if nobody did.
    source: str = ""
    #: This rank's statement of its addresses, if the ranks have no store to agree on them.
    named: NamedReducers | None = None
    #: A secret of these ranks, which came through their store; "" if they have none.
    run: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any], config: PluginConfig, group: str = "") -> MeetingPoint:
        """Return rank 0's choice on another rank of the group, from the result of `to_json`.

        Raises:
            ConfigError: the settings do not give access to the reducers.
        """
        job, token = fields["job"], fields["token"]
        addresses = tuple(fields["addresses"])
        access = OPEN
        if addresses:
            access = private_access(token) if token else access_of(config, job)
        colocation = fields["colocation"]
        return cls(
            job,
            addresses,
            access,
            sources={text: tuple(named) for text, named in fields["sources"].items()},
            colocation=None if colocation is None else from_json(Colocation, colocation),
            user=(job, group),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the part that the other ranks must know, as JSON fields."""
        return {
            "job": self.job,
            "addresses": self.addresses,
            "sources": self.sources,
            # A process that can read the store could take part as a rank anyway.
            "token": "" if self.embedded is None else self.embedded.token,
            "colocation": None if self.colocation is None else dataclasses.asdict(self.colocation),
        }

    @property
    def own_reducers(self) -> tuple[EmbeddedReducer, ...]:
        """The reducers that this process has started, for this job or an earlier one."""
        return self.started if self.embedded is None else (self.embedded, *self.started)

    def stop(self) -> None:
        """Return this process's own reducers. Those that no other job of it uses end."""
        give_back(self.user, self.own_reducers)

    def with_colocated(self, config: PluginConfig, store: BoundedStore, key: str, rank: int) -> MeetingPoint:
        """Return the meeting point with the reducers on the ranks' hosts, which all ranks start and wait for.

        Args:
            config: this rank's settings.
            store: of the rendezvous.
            key: a key under which nothing has been written yet.
            rank: this rank.

        Raises:
            ReductionError: see `colocated.start` and `colocated.addresses_of`.
        """
        if self.colocation is None:
            return self
        started = colocated.start(config, self.colocation, store, key, rank, self.user)
        try:
            found = colocated.addresses_of(config, self.colocation, store, key)
            access = private_access(self.colocation.token, config)
        except BaseException:
            give_back(self.user, started)
            raise
        return replace(
            self,
            addresses=(*self.addresses, *found),
            access=self.access if self.addresses else access,
            colocated=found,
            colocated_access=access,
            started=tuple(started),
        )


def choose(config: PluginConfig, infos: Mapping[int, RankInfo], group: str = "") -> MeetingPoint:
    """Return rank 0's choice; its settings apply to all. `infos` are by rank, empty if it is alone.

    Args:
        config: rank 0's settings.
        infos: of the ranks.
        group: distinguishes the ranks from others whose job has the same name; see `RankGroup.label`.

    Raises:
        ReductionError: settings contradict each other, an address cannot be resolved, or no reducer
            can be embedded.
    """
    named_here, job = configured(config), config.job or f"run-{uuid.uuid4()}"
    named = {rank: info.reducers for rank, info in infos.items() if info.reducers is not None}
    if named_here is None:
        for rank, reducers in named.items():
            raise ConfigError(
                f"rank {rank} has reducers ({', '.join(reducers)}), but rank 0 has none: rank 0's settings count, "
                f"so set reducers= or REDUCTION_REDUCERS there too"
            )
        if (colocation := _colocation(config, infos, None)) is not None:
            return MeetingPoint(job, (), colocation=colocation, user=(job, group))
        meeting_point = embed(job, infos, "no reducers are configured", group)
        address = meeting_point.addresses[0]
        log.info("no reducers are configured: rank 0 runs one at %s for this job", address)
        return meeting_point
    wanted = named_here.texts
    if different := [rank for rank, reducers in named.items() if set(reducers) != set(wanted)]:
        log.warning(
            "rank %d has different reducers (%s) than rank 0 (%s), whose settings count",
            different[0],
            ", ".join(named[different[0]]),
            ", ".join(wanted),
        )
    access = access_of(config, job)
    resolved = resolve(wanted, config.join_timeout_s, config.stall_warn_s)
    colocation = _colocation(config, infos, resolved.addresses)
    if colocation is None:
        colocated.advise(len({info.host_id for info in infos.values()}), resolved.addresses)
    return MeetingPoint(
        job,
        resolved.addresses,
        access,
        source=named_here.source,
        sources=resolved.sources,
        colocation=colocation,
        user=(job, group),
    )


def _colocation(
    config: PluginConfig, infos: Mapping[int, RankInfo], addresses: Sequence[str] | None
) -> Colocation | None:
    """Return who starts reducers on the ranks' hosts, if there should be any besides those at these addresses.

    Raises:
        ConfigError: ranks have other settings than rank 0, or there are too many hosts.
    """
    for rank, info in infos.items():
        if info.colocated != config.colocated:
            raise ConfigError(
                f"rank {rank} has colocated={info.colocated!r}, but rank 0 {config.colocated!r}: "
                f"use the same on all ranks"
            )
    leaders = colocated.leaders_of({rank: info.host_id for rank, info in infos.items()})
    if not colocated.is_needed(config, len(leaders), addresses):
        return None
    return Colocation(leaders, _TOKEN)


def embed(job: str, infos: Mapping[int, RankInfo], why: str, group: str = "") -> MeetingPoint:
    """Meet at a private reducer of this process; errors give `why` as the reason why there is no other.

    Raises:
        ReductionError: a rank runs on another host, or the reducer does not start.
    """
    for rank, info in infos.items():
        if info.host_id != infos[0].host_id:
            raise ConfigError(
                f"{why}, and rank {rank} is on a different host than rank 0: start "
                f"`reducer serve` somewhere and pass reducers= or set REDUCTION_REDUCERS"
            )
    embedded = lend((job, group))
    return MeetingPoint(job, (embedded.address,), private_access(embedded.token), embedded, user=(job, group))


def check_without_store(config: PluginConfig) -> None:
    """Reject settings that leave something for the ranks to agree on, because they have no store.

    Raises:
        ConfigError: the settings leave something open.
    """
    if config.fallback is not None:
        raise ConfigError(
            f"fallback={config.fallback!r} needs a way to inform all ranks: initialise torch.distributed"
        )
    if config.colocated is not None:
        raise ConfigError(
            f"colocated={config.colocated!r} needs a way to inform all ranks: initialise torch.distributed"
        )
    if config.job is None:
        raise ConfigError("no job name: pass job= or set REDUCTION_JOB, the same on all ranks")
    if configured(config) is None:
        raise ConfigError(
            "no reducers are configured: pass reducers=, set REDUCTION_REDUCERS, or initialise "
            "torch.distributed so that rank 0 can start one for all ranks of this host"
        )


def warn_without_run(config: PluginConfig) -> None:
    """Warn that these ranks could meet those of another run, if nothing distinguishes them."""
    if config.run is None and config.rank == 0:
        log.warning(
            "nothing distinguishes these ranks from those of another run that is also called %r, and they would mix: "
            "pass run= or set REDUCTION_RUN, the same on all ranks and new for every run",
            config.job,
        )
