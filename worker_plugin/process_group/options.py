"""`ReductionOptions`: settings of one process group, for torch's `pg_options` and `backend_override`."""

from __future__ import annotations

import datetime
from typing import Unpack

from _reduction_server_entry_points import NAME
from reduction.errors import ConfigError
from torch._C._distributed_c10d import Backend

from worker_plugin.config import AllSettings

#: Settings that torch determines itself.
_OF_TORCH = ("rank", "world_size", "timeout_s")


class ReductionOptions(Backend.Options):
    """Settings of the state behind one process group. Those not given come from REDUCTION_*.

    mesh = init_device_mesh(
        "cuda", (4, 8), mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": ("reduction", ReductionOptions(wire_dtype="bf16"))},
    )

    Args:
        **settings: those of `ReductionState` except rank, world_size and timeout_s, which are the group's.

    Raises:
        ConfigError: one of these three was given. Errors in the others are reported when the group is created.
    """

    def __init__(self, **settings: Unpack[AllSettings]) -> None:
        super().__init__(NAME, datetime.timedelta(minutes=30))
        if wrong := [name for name in _OF_TORCH if name in settings]:
            raise ConfigError(f"{', '.join(wrong)} of a process group cannot be set: torch determines it")
        self.settings = settings
