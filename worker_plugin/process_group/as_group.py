"""The process group of torch 2.8 to 2.13, which takes the place of torch's own group."""

from __future__ import annotations

from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.config import AllSettings
from worker_plugin.process_group import inner
from worker_plugin.process_group.all_reduce import AllReducer, ReducersFirst
from worker_plugin.process_group.members import Members
from worker_plugin.process_group.order import Order


@inner.forwards(inner.FORWARDED, ProcessGroup)
class ReductionProcessGroup(ReducersFirst, ProcessGroup):  # type: ignore[misc]  # its overloads are one method here
    """A group of ranks whose all-reduces go through the reducers.

    Args:
        members: of the group.
        settings: of the state, beside REDUCTION_*.
    """

    def __init__(self, members: Members, settings: AllSettings) -> None:
        # With a store as well pybind11 refuses a subclass.
        ProcessGroup.__init__(self, members.rank, members.size)  # type: ignore[call-arg]
        self.all_reducer = AllReducer(members, settings)
        self._order = Order()
        backends = inner.backends_of(members, self.state.config)
        self._inner = ProcessGroup(members.store, members.rank, members.size)
        # In this group as well: C++ asks it for what it cannot override (reduce, gather), and takes
        # that way without the GIL.
        for group in (self._inner, self):
            inner.register_backends(group, backends)
