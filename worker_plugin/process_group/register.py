"""Creates groups for torch, which asks by name, and finds the implementation behind a group."""

from __future__ import annotations

import torch
from reduction.errors import ConfigError
from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
from torch.distributed import ProcessGroup

from worker_plugin.config import AllSettings
from worker_plugin.process.torch_version import WITH_BACKENDS, is_too_old
from worker_plugin.process_group.all_reduce import AllReducer, ReducersFirst
from worker_plugin.process_group.groups import ReductionBackend, ReductionProcessGroup
from worker_plugin.process_group.options import ReductionOptions
from worker_plugin.state import ReductionState


def make_group(options: _DistributedBackendOptions, pg_options: object) -> ProcessGroup | Backend:
    """Create a group, or the backend inside a group, as torch requests it.

    Args:
        options: the ranks of the group.
        pg_options: the user's `pg_options` or entry in `backend_override`, if any.

    Raises:
        ConfigError: `pg_options` is not a `ReductionOptions`, or a setting is wrong.
    """
    settings: AllSettings = {}
    if isinstance(pg_options, ReductionOptions):
        settings = pg_options.settings
    elif pg_options is not None:
        raise ConfigError(
            f"pg_options of a group of backend 'reduction' is {pg_options!r}: pass "
            f"worker_plugin.process_group.ReductionOptions(...), or nothing"
        )
    kind = ReductionProcessGroup if is_too_old(torch.__version__, WITH_BACKENDS) else ReductionBackend
    return kind(options, settings)


def state_of(group: ProcessGroup) -> ReductionState:
    """Return the state behind a group of the "reduction" backend: its `error`, its settings, its job.

    Raises:
        ConfigError: the group is of another backend.
    """
    return all_reducer_of(group).state


def all_reducer_of(group: ProcessGroup) -> AllReducer:
    """Return the all-reducer of a group of the "reduction" backend.

    Raises:
        ConfigError: the group is of another backend.
    """
    if isinstance(group, ReducersFirst):
        return group.all_reducer
    for device in group._device_types:
        backend = group._get_backend(device)
        if isinstance(backend, ReducersFirst):
            return backend.all_reducer
    raise ConfigError(f"{group!r} is not a process group of the backend 'reduction'")
