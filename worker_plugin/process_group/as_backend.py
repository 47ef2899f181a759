"""The backend of torch 2.14 and newer, which torch's own process group has inside, one for each device.

Unlike up to 2.13 (as_group.py) other devices may have another backend, and torch keeps Python's half of
a Work alive.
"""

from __future__ import annotations

from _reduction_server_entry_points import NAME
from torch._C._distributed_c10d import Backend
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.config import AllSettings
from worker_plugin.process_group import inner
from worker_plugin.process_group.all_reduce import AllReducer, ReducersFirst
from worker_plugin.process_group.members import Members
from worker_plugin.process_group.order import Order


@inner.forwards(inner.FORWARDED, Backend)
class ReductionBackend(ReducersFirst, Backend):
    """What a group of ranks uses whose all-reduces go through the reducers.

    Args:
        members: of the group.
        settings: of the state, beside REDUCTION_*.
    """

    def __init__(self, members: Members, settings: AllSettings) -> None:
        Backend.__init__(self, members.rank, members.size)
        self.all_reducer = AllReducer(members, settings)
        self._order = Order()
        self._options = Backend.Options(NAME, members.timeout)
        # It asks Gloo or NCCL by the tensors' device.
        self._inner = ProcessGroup(members.store, members.rank, members.size)
        inner.register_backends(self._inner, inner.backends_of(members, self.state.config))

    @property
    def options(self) -> Backend.Options:
        """See torch."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        """See torch."""
        return False
