"""Horovod's API over the reducers: scripts that `import horovod.torch as hvd` import this module instead.

    import reduction_server.horovod as hvd

All-reduces of dense tensors go through the reducers, and so do a DistributedOptimizer's gradients.
Everything else goes over Gloo, or NCCL for tensors on GPUs. The names and arguments are those of
horovod.torch 0.28, whose own tests this module is checked with; see docs/integrations.md for what is missing.

    negotiation.py   collectives by name: ranks may issue them in any order
    handles.py       the common parts of collectives
    world.py         init, ranks, process sets, and their sums
    collectives.py   all-reduces, through the reducers, and other collectives of tensors
    functions.py     broadcast of parameters, optimizers and objects, and more
    optimizer.py     DistributedOptimizer
"""

# ruff: noqa: F403, F405
from worker_plugin.integrations.horovod.collectives import *
from worker_plugin.integrations.horovod.functions import *
from worker_plugin.integrations.horovod.handles import *
from worker_plugin.integrations.horovod.negotiation import *
from worker_plugin.integrations.horovod.optimizer import *
from worker_plugin.integrations.horovod.world import *

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]
