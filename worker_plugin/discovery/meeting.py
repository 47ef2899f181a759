"""How the ranks agree on the job's name and on the reducers, through the process group's store if need be."""

from __future__ import annotations

import datetime
import itertools
import logging
import uuid
from dataclasses import dataclass, replace

from reduction.errors import ConfigError, ReducerUnavailable, ReductionError
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.addresses import configured, resolve
from worker_plugin.discovery.embedded import EmbeddedReducer, loopback_id
from worker_plugin.security import OPEN, Access, access_of, private_access

log = logging.getLogger(__name__)

_count = itertools.count()
_FAILED = "error:"


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
        self._store = store if is_needed else None
        self._prefix = f"reduction-server/{next(_count) if is_needed else 'none'}/"

    def agree(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return job name and reducer addresses; blocks for up to `join_timeout_s` at each step.

        Raises:
            ReductionError: nothing is configured and no reducer can be embedded, or a rank did not come.
        """
        store = self._open(config)
        if config.fallback is not None and world_size > 1 and store is None:
            raise ConfigError(
                f"fallback={config.fallback!r} needs a way to tell all ranks: initialise torch.distributed"
            )
        job = config.job or self._job(store, rank, world_size)
        addresses = configured(config)
        if addresses is not None:
            return Place(job, resolve(addresses, config.join_timeout_s), access_of(config, job))
        if world_size > 1 and store is None:
            raise ConfigError(
                "no reducers are configured: pass reducers=, set REDUCTION_REDUCERS, or initialise "
                "torch.distributed so that rank 0 can start one for all ranks of this host"
            )
        place = self._private(store, "", rank, world_size, "no reducers are configured")
        log.info("no reducers are configured: rank 0 runs one at %s for this job", place.addresses[0])
        return replace(place, job=job)

    def fall_back(self, config: PluginConfig, rank: int, world_size: int) -> Place:
        """Return the address of a reducer that rank 0 starts now, because none is left; blocks like `agree`.

        Raises:
            ReductionError: a rank did not come, or runs on another host.
        """
        return self._private(self._open(config), "fallback/", rank, world_size, "no reducer is left")

    def _open(self, config: PluginConfig) -> Store | None:
        """Return a client of our own: a blocking get on the shared one would stall the training thread's use."""
        if self._store is None:
            return None
        store: Store = self._store.clone()  # type: ignore[attr-defined]  # not in the stubs
        store.set_timeout(datetime.timedelta(seconds=config.join_timeout_s))
        return store

    def _private(self, store: Store | None, part: str, rank: int, world_size: int, why: str) -> Place:
        """Have rank 0 start a reducer for all ranks of this host; return its address."""
        if rank == 0:
            return self._embed(store, part, world_size, why)
        assert store is not None
        store.set(f"{self._prefix}{part}loopback/{rank}", loopback_id())
        answer = self._get(store, f"{part}address", "rank 0 to start the embedded reducer")
        if answer.startswith(_FAILED):
            raise ConfigError(answer.removeprefix(_FAILED))
        address, _, token = answer.partition(" ")
        return Place("", (address,), private_access(token))

    def _job(self, store: Store | None, rank: int, world_size: int) -> str:
        job = f"run-{uuid.uuid4()}"
        if world_size == 1:
            return job
        if store is None:
            raise ConfigError("no job name: pass job= or set REDUCTION_JOB, the same on all ranks")
        if rank != 0:
            return self._get(store, "job", "rank 0 to name the job")
        store.set(f"{self._prefix}job", job)
        return job

    def _embed(self, store: Store | None, part: str, world_size: int, why: str) -> Place:
        """Rank 0's part: start a reducer if everybody can reach it, and tell the others."""
        try:
            for rank in range(1, world_size):
                assert store is not None
                if self._get(store, f"{part}loopback/{rank}", f"rank {rank}") != loopback_id():
                    raise ConfigError(
                        f"{why}, and rank {rank} is on another host than rank 0: start "
                        f"`reducer serve` somewhere and pass reducers= or set REDUCTION_REDUCERS"
                    )
            embedded = EmbeddedReducer()
        except ReductionError as error:
            if store is not None:
                store.set(f"{self._prefix}{part}address", f"{_FAILED}{error}")
            raise
        if store is not None:
            # Who can read the store could be a rank anyway.
            store.set(f"{self._prefix}{part}address", f"{embedded.address} {embedded.token}")
        return Place("", (embedded.address,), private_access(embedded.token), embedded)

    def _get(self, store: Store, key: str, whom: str) -> str:
        try:
            value: bytes = store.get(self._prefix + key)
            return value.decode()
        except (DistStoreError, RuntimeError) as error:
            raise ReducerUnavailable(f"waited in vain for {whom}: {error}") from None
