"""The classes for the "reduction" backend: up to torch 2.13 a process group, from 2.14 on a backend inside torch's own.

With the newer torch, other devices may have another backend, and torch keeps Python's half of a Work alive.
"""

from __future__ import annotations

from _reduction_server_entry_points import NAME
from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.config import AllSettings
from worker_plugin.process_group.all_reduce import ReducersFirst
from worker_plugin.process_group.inner import register_backends


class ReductionProcessGroup(ReducersFirst, ProcessGroup):  # type: ignore[misc]  # its overloads are one method here
    """A group of ranks whose all-reduces go through the reducers. It replaces torch's own group.

    Args:
        ranks: the group's.
        settings: of the state, in addition to REDUCTION_*.
    """

    def __init__(self, ranks: _DistributedBackendOptions, settings: AllSettings) -> None:
        # If it is given a store too, pybind11 rejects a subclass.
        ProcessGroup.__init__(self, ranks.group_rank, ranks.group_size)  # type: ignore[call-arg]
        backends = self._set_up(ranks, settings)
        # Registered in this group as well: for operations that it cannot override (reduce, gather), C++ asks the group
        # itself, without the GIL.
        register_backends(self, backends)


class ReductionBackend(ReducersFirst, Backend):
    """Counterpart for torch 2.14 and newer, whose own process group contains one for each device.

    Args:
        ranks: the group's.
        settings: of the state, in addition to REDUCTION_*.
    """

    def __init__(self, ranks: _DistributedBackendOptions, settings: AllSettings) -> None:
        Backend.__init__(self, ranks.group_rank, ranks.group_size)
        self._options = Backend.Options(NAME, ranks.timeout)
        self._set_up(ranks, settings)

    @property
    def options(self) -> Backend.Options:
        """See torch."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        """See torch."""
        return False
