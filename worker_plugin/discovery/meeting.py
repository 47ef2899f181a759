"""How the ranks agree on the job's name and on the reducers, through the process group's store if need be."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reduction.errors import ConfigError, ReductionError
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import roll_call
from worker_plugin.discovery.addresses import configured, resolve
from worker_plugin.discovery.embedded import EmbeddedReducer, loopback_id
from worker_plugin.security import OPEN, Access, access_of, private_access

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job meets."""

    job: str
    addresses: tuple[str, ...]
    access: Access = OPEN
    embedded: EmbeddedReducer | None = None

    def stop(self) -> None:
        """End what was started for it."""
        if self.embedded is not None:
            self.embedded.stop()


class Meeting:
    """One communicator's corner of the store; the n-th that needs it meets the n-th of the other ranks."""

    def __init__(self, config: PluginConfig, store: Store | None, world_size: int) -> None:
        """Take a corner if one is needed; on the thread of the first collective, so that all ranks count alike."""
        is_needed = world_size > 1 and (
            config.job is None or configured(config) is None or config.fallback is not None
        )
        self._corner = roll_call.take_corner(store, "meeting") if is_needed and store is not None else None

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return job name and reducer addresses; blocks until all ranks are there, or too late.

        Raises:
            ReductionError: nothing is configured and no reducer can be embedded, or a rank did not come.
        """
        store, addresses, job = self._open(config), configured(config), config.job
        if store is None and world_size > 1:
            _check_alone(config, addresses)
        if job is None or addresses is None:
            why = "no reducers are configured" if addresses is None else None
            place = self._meet(store, config, rank, world_size, why)
            job = job or place.job
        if addresses is None:
            log.info("no reducers are configured: rank 0 runs one at %s for this job", place.addresses[0])
            return replace(place, job=job)
        return Place(job, resolve(addresses, config.join_timeout_s), access_of(config, job))

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return the address of a reducer that rank 0 starts now, because none is left; blocks like `agree`.

        Raises:
            ReductionError: a rank did not come, or runs on another host.
        """
        return self._meet(self._open(config), config, rank, world_size, "no reducer is left")

    def _open(self, config: PluginConfig) -> Store | None:
        return None if self._corner is None else self._corner.open(config.join_timeout_s)

    def _meet(
        self, store: Store | None, config: PluginConfig, rank: int, world_size: int, why: str | None
    ) -> Place:
        """Return what rank 0 says: the job's name, and where it runs a reducer if there is a reason `why`."""
        if rank != 0:
            assert store is not None
            text, _ = roll_call.attend(store, rank, loopback_id(), config)
            answer = json.loads(text)
            if why is not None and not answer["addresses"]:
                raise ConfigError(
                    f"rank {rank} knows no reducers, rank 0 does: set the same reducers= on all ranks"
                )
            return Place(answer["job"], tuple(answer["addresses"]), private_access(answer["token"]))
        call = None if store is None else roll_call.RollCall(store)
        try:
            words = {} if call is None else call.hear(world_size, config)
            place = Place(config.job or f"run-{uuid.uuid4()}", ())
            if why is not None:
                place = _embedded(place, words, why)
        except ReductionError as error:
            if call is not None:
                call.refuse(error)
            raise
        if call is not None:
            # Who can read the store could be a rank anyway.
            token = "" if place.embedded is None else place.embedded.token
            call.answer(json.dumps({"job": place.job, "addresses": place.addresses, "token": token}))
        return place


def _check_alone(config: PluginConfig, addresses: tuple[str, ...] | None) -> None:
    """Refuse settings that leave something to agree on, if there is no store for it."""
    if config.fallback is not None:
        raise ConfigError(
            f"fallback={config.fallback!r} needs a way to tell all ranks: initialise torch.distributed"
        )
    if config.job is None:
        raise ConfigError("no job name: pass job= or set REDUCTION_JOB, the same on all ranks")
    if addresses is None:
        raise ConfigError(
            "no reducers are configured: pass reducers=, set REDUCTION_REDUCERS, or initialise "
            "torch.distributed so that rank 0 can start one for all ranks of this host"
        )


def _embedded(place: Place, words: Mapping[int, str], why: str) -> Place:
    """Start a reducer if everybody can reach it."""
    for rank, word in words.items():
        if word != loopback_id():
            raise ConfigError(
                f"{why}, and rank {rank} is on another host than rank 0: start "
                f"`reducer serve` somewhere and pass reducers= or set REDUCTION_REDUCERS"
            )
    embedded = EmbeddedReducer()
    return replace(
        place, addresses=(embedded.address,), access=private_access(embedded.token), embedded=embedded
    )
