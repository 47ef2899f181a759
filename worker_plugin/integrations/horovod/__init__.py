"""Horovod's API over the reducers: scripts that `import horovod.torch as hvd` import this module instead.

    import reduction_server.horovod as hvd

All-reduces of dense tensors go through the reducers, and so do a DistributedOptimizer's gradients;
everything else goes over Gloo, or NCCL for tensors on GPUs. The names and arguments are those of
horovod.torch 0.28, whose own tests judge this module: see docs/integrations.md for what is not here.

    world.py         init, ranks, process sets
    negotiation.py   collectives by name: ranks may issue them in any order
    handles.py       what collectives have in common
    all_reduce.py    all-reduces, through the reducers; join and barrier
    exchange.py      all-gather, broadcast, all-to-all
    parts.py         reduce-scatter, sparse sums
    optimizer.py     DistributedOptimizer
    functions.py     broadcast of parameters, optimizers and objects
"""

from worker_plugin.integrations.horovod.all_reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    join,
)
from worker_plugin.integrations.horovod.exchange import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from worker_plugin.integrations.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from worker_plugin.integrations.horovod.handles import (
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    poll,
    synchronize,
)
from worker_plugin.integrations.horovod.negotiation import HorovodInternalError
from worker_plugin.integrations.horovod.optimizer import DistributedOptimizer
from worker_plugin.integrations.horovod.parts import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from worker_plugin.integrations.horovod.world import (
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)

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
