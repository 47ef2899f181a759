"""The process group of Gloo, and NCCL where there are GPUs, that does what reducers cannot.

It is a plain torch group, and everything left to it is forwarded from Python (`FORWARDED`). Our groups must neither
leave a method to their base class nor call it there. torch calls the base class with the GIL held, where it waits for
Gloo's queue, while Gloo's thread holds the queue and waits for the GIL to drop a tensor (torch 2.13:
PyProcessGroup.hpp WORK_OVERRIDE, ProcessGroupGloo::enqueue and runLoop). A loop of small collectives hung in half of
all runs. The bindings of a plain group release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.bounded_store import EXTRA_S, BoundedStore, check_alive
from worker_plugin.process.torch_version import WITH_BACKENDS, is_too_old

#: Methods of a process group, except all-reduces and `barrier`, in all versions of torch. No version has them all.
FORWARDED = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
#: Methods between two ranks. They wait for no collective, because the other ranks may not have called it yet.
_POINT_TO_POINT = ("recv", "recv_anysource", "send")


def backends_of(group: _DistributedBackendOptions, config: PluginConfig) -> dict[str, Any]:
    """Return Gloo's backend for "cpu" and, if this machine can use it, NCCL's for "cuda".

    Gloo waits for the other ranks for the group's own timeout.

    Raises:
        WorkerLost: see `BoundedStore.ask`.
    """
    store, rank, size, timeout = group.store, group.group_rank, group.group_size, group.timeout

    def make(raw: Store) -> Any:
        return dist.ProcessGroupGloo(PrefixStore("gloo/", raw), rank, size, timeout=timeout)

    check_alive(store, config)
    gloo = BoundedStore(store, config).run(make, timeout.total_seconds() + EXTRA_S)
    is_counted = is_too_old(torch.__version__, WITH_BACKENDS)  # newer ones count on their own
    if is_counted:
        gloo._set_sequence_number_for_group()
    backends: dict[str, Any] = {"cpu": gloo}
    if dist.is_nccl_available() and torch.cuda.is_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group = list(group.global_ranks_in_group)
        options.group_name = group.group_id  # type: ignore[assignment]
        nccl = dist.ProcessGroupNCCL(PrefixStore("nccl/", store), rank, size, options)
        if is_counted:
            nccl._set_sequence_number_for_group()
        backends["cuda"] = nccl
    return backends


def register_backends(group: ProcessGroup, backends: dict[str, Any]) -> None:
    """Make a group use these backends, by kind of device, for what it does not do itself."""
    kinds = {"cpu": ProcessGroup.BackendType.GLOO, "cuda": ProcessGroup.BackendType.NCCL}
    for device, backend in backends.items():
        group._register_backend(torch.device(device), kinds[device], backend)
    group._set_default_backend(kinds["cpu"])


_C = TypeVar("_C", bound=Callable[..., Any])


def forward_all(cls: type) -> None:
    """Make the methods of FORWARDED that a class has from torch call `self._inner`'s instead."""
    for name in FORWARDED:
        if hasattr(cls, name):
            setattr(cls, name, _forwarder(name))


def not_compiled(method: _C) -> _C:
    """Keep torch.compile from tracing into a method, which it would do where compiled DDP calls it."""
    return torch.compiler.disable(method)  # type: ignore[no-any-return, no-untyped-call]


def _forwarder(name: str) -> Callable[..., Any]:
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        method = getattr(self._inner, name)
        if name in _POINT_TO_POINT:
            return method(*arguments, **named)
        return self._order.delegate(method, *arguments, **named)

    forward.__name__ = name
    return not_compiled(forward)
