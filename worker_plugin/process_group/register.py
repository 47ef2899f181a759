"""Makes the backend known to torch, and makes groups for it."""

from __future__ import annotations

from typing import Any

from reduction import torch_plugin
from reduction.errors import ConfigError
from torch.distributed import ProcessGroup

from worker_plugin.config import AllSettings
from worker_plugin.process_group.group import ReductionProcessGroup
from worker_plugin.process_group.options import ReductionOptions


def register() -> None:
    """Make the backend "reduction" known to torch. Idempotent."""
    torch_plugin.register_backend()


def make_group(options: Any, pg_options: object) -> ProcessGroup:
    """Make a group, as torch asks for it.

    Args:
        options: torch's `_DistributedBackendOptions`.
        pg_options: what the user passed as `pg_options` or in `backend_override`, if anything.

    Raises:
        ConfigError: it is no `ReductionOptions`, or a setting is wrong.
    """
    settings: AllSettings = {}
    if isinstance(pg_options, ReductionOptions):
        settings = pg_options.settings
    elif pg_options is not None:
        raise ConfigError(
            f"pg_options of a group of backend 'reduction' is {pg_options!r}: pass "
            f"worker_plugin.process_group.ReductionOptions(...), or nothing"
        )
    return ReductionProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        global_ranks=options.global_ranks_in_group,
        name=str(options.group_id),
        settings=settings,
    )
