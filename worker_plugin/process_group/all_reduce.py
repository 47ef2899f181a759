"""All-reduces of a process group: which go through the reducers, how they are issued, and how the group ends.

`ReducersFirst` is the common base of the classes for older and newer versions of torch (groups.py).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from _reduction_server_entry_points import NAME
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.autograd.graph import increment_version
from torch.distributed.distributed_c10d import AllreduceCoalescedOptions, AllreduceOptions, ProcessGroup
from torch.utils.weak import WeakIdKeyDictionary

from worker_plugin.config import AllSettings
from worker_plugin.discovery.rank_group import RankGroup, ranks_text
from worker_plugin.process.at_exit import ClosedAtExit
from worker_plugin.process_group.inner import backends_of, forward_all, not_compiled, register_backends
from worker_plugin.process_group.order import Order
from worker_plugin.state import ReductionState
from worker_plugin.tensors.futures import Future, fail, make_future
from worker_plugin.tensors.supported import each_once, is_admitted

#: torch names groups by small numbers or by hashes. This many characters of a hash suffice.
_NAME_CHARS_MAX = 32


class AllReducer:
    """The all-reduces of one process group. Each group has its own state, and so its own job.

    Args:
        group: its ranks, as described by torch; REDUCTION_TIMEOUT_S takes precedence over its timeout.
        settings: of the state, in addition to REDUCTION_*.
    """

    def __init__(self, group: _DistributedBackendOptions, settings: AllSettings) -> None:
        # Without a default group, only this group numbers the ranks.
        ranks = tuple(group.global_ranks_in_group) or tuple(range(group.group_size))
        label = f"{ranks_text(ranks)} pg {group.group_id[:_NAME_CHARS_MAX]}" if group.group_id else ""
        settings = settings.copy()
        if not os.environ.get("REDUCTION_TIMEOUT_S"):
            settings["timeout_s"] = group.timeout.total_seconds()
        own = RankGroup(group.group_rank, group.group_size, ranks, label, group.store)
        self.state = ReductionState.of_ranks(own, **settings)
        #: The `Origin` of each tensor about to be reduced that gets error feedback, keyed by the tensor.
        self.origins: Any = WeakIdKeyDictionary()
        _all_reducers.add(self)

    def takes(self, tensors: Sequence[torch.Tensor], op: dist.ReduceOp) -> bool:
        """Return whether reducers can do it. Looks only at what all ranks of a correct program agree on."""
        return all(is_admitted(tensor, op) for tensor in tensors)

    def issue(self, tensors: Sequence[torch.Tensor], op: dist.ReduceOp) -> list[Future]:
        """Reduce each of the given tensors over all ranks, in place.

        Raises:
            ReductionError: see `ReductionState.all_reduce`.
        """
        return [self._issue(tensor, op) for tensor in tensors]

    def _issue(self, tensor: torch.Tensor, op: dist.ReduceOp) -> Future:
        if tensor.is_contiguous() and not tensor.is_neg():
            origin = self.origins.pop(tensor, None) if self.origins else None
            return self.state.all_reduce_of(origin, tensor, op)
        target = each_once(tensor)  # before it is issued, because this may raise
        copied = make_future(tensor)

        def copy_back(done: Future) -> None:
            try:
                with torch.inference_mode(tensor.is_inference()):
                    target.copy_(done.value()[tuple(map(slice, target.shape))])
            except Exception as error:
                fail(copied, error)
            else:
                copied.set_result(tensor)

        self.state.all_reduce(tensor.detach().resolve_neg().contiguous(), op).add_done_callback(copy_back)
        if op == dist.ReduceOp(dist.ReduceOp.AVG):
            increment_version(tensor)
        return copied

    def begin_close(self) -> None:
        """Do nothing: worker_plugin/client.py closes the state's own communicator."""

    def close(self) -> None:
        """Close the state."""
        self.state.close()


#: Closed before the threads of completions.py, which may be waiting for collectives of these.
_all_reducers: ClosedAtExit[AllReducer] = ClosedAtExit()


class ReducersFirst:
    """A group, or a backend inside one, that tries the reducers first. Its other base class is torch's."""

    #: Does the all-reduces that go through the reducers.
    all_reducer: AllReducer
    _order: Order
    #: Does what reducers cannot.
    _inner: ProcessGroup

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        forward_all(cls)

    def _set_up(self, ranks: _DistributedBackendOptions, settings: AllSettings) -> dict[str, Any]:
        """Set the attributes; return the backends of the inner group, by kind of device."""
        self.all_reducer = AllReducer(ranks, settings)
        self._order = Order()
        backends = backends_of(ranks, self.state.config)
        # It chooses Gloo or NCCL by the tensors' device.
        self._inner = ProcessGroup(ranks.store, ranks.group_rank, ranks.group_size)
        register_backends(self._inner, backends)
        return backends

    @property
    def state(self) -> ReductionState:
        """The state behind the group."""
        return self.all_reducer.state

    def getBackendName(self) -> str:
        """See torch."""
        return NAME

    @not_compiled
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **named: Any) -> dist.Work:
        """Reduce a tensor in place: through the reducers if they can do it, otherwise by the inner group.

        torch's overloads take one tensor or a list, and options, an operation as `opts` or `op`, or neither.
        """
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = _op_of(opts, named)
        if len(tensors) == 1 and self.all_reducer.takes(tensors, op):
            return self._reduce(tensors, op)
        return self._order.delegate(self._inner.allreduce, tensors, _options(AllreduceOptions, opts, op))

    @not_compiled
    def allreduce_coalesced(self, tensors: Any, opts: Any = None, **named: Any) -> dist.Work:
        """Reduce several tensors in place, each like `allreduce`."""
        tensors = list(tensors)
        op = _op_of(opts, named)
        if tensors and self.all_reducer.takes(tensors, op):
            return self._reduce(tensors, op)
        options = _options(AllreduceCoalescedOptions, opts, op)
        return self._order.delegate(self._inner.allreduce_coalesced, tensors, options)

    @not_compiled
    def barrier(self, *arguments: Any, **named: Any) -> dist.Work:
        """Meet the other ranks once the collectives called before are done on all of them."""
        return self._order.barrier(functools.partial(self._inner.barrier, *arguments, **named))

    def _reduce(self, tensors: Sequence[torch.Tensor], op: dist.ReduceOp) -> dist.Work:
        return self._order.all_reduce(tensors, functools.partial(self.all_reducer.issue, tensors, op))

    def shutdown(self) -> None:
        """Leave cleanly, after the all-reduces in flight. torch calls this in destroy_process_group."""
        self._order.wait()
        self.state.close()

    def abort(self) -> None:
        """Leave immediately; collectives in flight fail on all ranks."""
        self.state.abort()
        self._inner.abort()


def _op_of(opts: Any, named: dict[str, Any]) -> dist.ReduceOp:
    """Return the operation of an all-reduce; SUM if none is given."""
    given = named.get("op") if opts is None else opts
    if isinstance(given, (AllreduceOptions, AllreduceCoalescedOptions)):
        given = given.reduceOp
    return dist.ReduceOp(dist.ReduceOp.SUM) if given is None else given


def _options(kind: type[Any], opts: Any, op: dist.ReduceOp) -> Any:
    """Return the given options, or new ones of this kind if only an operation, or nothing, was given."""
    if isinstance(opts, kind):
        return opts
    options = kind()
    options.reduceOp = op
    return options
