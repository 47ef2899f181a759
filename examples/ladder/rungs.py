"""The differences between the rungs of the ladder, apart from torchrun."""

from __future__ import annotations

from argparse import Namespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from reduction_server import attach


def join(rung: str, device: str) -> tuple[int, int]:
    """Meet the other ranks, if the rung has any; return this process's rank and the number of ranks."""
    if rung in ("one", "dataparallel"):
        return 0, 1
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    return dist.get_rank(), dist.get_world_size()


def one(model: nn.Module, options: Namespace) -> nn.Module:
    """Train in one process on one GPU."""
    return model


def dataparallel(model: nn.Module, options: Namespace) -> nn.Module:
    """Train in one process on all of its GPUs. Without a GPU, torch calls the model directly."""
    return DataParallel(model)


def ddp(model: nn.Module, options: Namespace) -> nn.Module:
    """Train in one process per GPU. The ranks average their gradients among themselves."""
    return DistributedDataParallel(model)


def reducers(model: nn.Module, options: Namespace) -> nn.Module:
    """Let reducers average the gradients: those in REDUCTION_REDUCERS, or private ones."""
    parallel = DistributedDataParallel(model)
    attach(parallel)
    return parallel


def hsdp(model: nn.Module, options: Namespace) -> nn.Module:
    """Shard the model within a node, and let reducers average its copies across nodes."""
    mesh = init_device_mesh(
        options.device,
        (dist.get_world_size() // options.shard, options.shard),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": options.across},
    )
    for stage in model.children():
        fully_shard(stage, mesh=mesh)
    return fully_shard(model, mesh=mesh)


RUNGS = {rung.__name__: rung for rung in (one, dataparallel, ddp, reducers, hsdp)}
