"""Training on the backend "reduction" in all of torch's wrappers: bit-identical parameters to those on Gloo.

Each all-reduce has two ranks, so there is only one order of addition.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as default_hooks
import torch.distributed.checkpoint as checkpoint
from support.training.through_reducers import passed_through
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.process_group import ReductionOptions

STEPS = 4
Group = Any


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(rank: Any, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None = None) -> None:
    torch.manual_seed(100 + rank.number)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
        for one in model.parameters()
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


# ---- data parallel ----


def ddp(rank: Any, group: Group, **options: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(new_model(), process_group=group, **options)
    train(rank, model, sgd(model))
    return whole(model)


def compiled(rank: Any, group: Group) -> list[torch.Tensor]:
    model = DistributedDataParallel(new_model(), process_group=group)
    train(rank, torch.compile(model, backend="aot_eager"), sgd(model))
    return whole(model)


def with_hook(rank: Any, group: Group, which: str) -> list[torch.Tensor]:
    model = DistributedDataParallel(new_model(), process_group=group)
    if which == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    else:
        state = powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=0.5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(rank, model, sgd(model))
    return whole(model)


def local_sgd(rank: Any, group: Group) -> list[torch.Tensor]:
    from torch.distributed.optim import PostLocalSGDOptimizer  # warns when imported

    model = DistributedDataParallel(new_model(), process_group=group)
    alone = [dist.new_group([number]) for number in range(rank.world_size)][rank.number]
    state = post_localSGD_hook.PostLocalSGDState(group, alone, start_localSGD_iter=1)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=1, process_group=group)
    train(rank, model, PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager))
    averager.step = 2  # makes the final average run
    averager.average_parameters(model.parameters())
    return whole(model)


def zero(rank: Any, group: Group) -> list[torch.Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when imported

    model = DistributedDataParallel(new_model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=0.1, momentum=0.9
    )
    train(rank, model, optimizer)
    return whole(model)


def join(rank: Any, group: Group) -> list[torch.Tensor]:
    model = DistributedDataParallel(new_model(), process_group=group)
    optimizer = sgd(model)
    with model.join():
        for step in range(2 + rank.number):
            optimizer.zero_grad()
            model(torch.full((4, 16), float(step + rank.number))).sum().backward()
            optimizer.step()
    return whole(model)


def composable(rank: Any, group: Group) -> list[torch.Tensor]:
    model = new_model()
    replicate(model, process_group=group)
    train(rank, model, sgd(model))
    return whole(model)


def fsdp1_no_shard(rank: Any, group: Group) -> list[torch.Tensor]:
    strategy, cpu = ShardingStrategy.NO_SHARD, torch.device("cpu")
    model = FullyShardedDataParallel(
        new_model(), process_group=group, sharding_strategy=strategy, device_id=cpu
    )
    train(rank, model, sgd(model))
    return whole(model)


DATA_PARALLEL: dict[str, Callable[[Any, Group], list[torch.Tensor]]] = {
    "ddp": ddp,
    "static_graph": lambda rank, group: ddp(rank, group, static_graph=True),
    "find_unused_parameters": lambda rank, group: ddp(rank, group, find_unused_parameters=True),
    "gradient_as_bucket_view": lambda rank, group: ddp(rank, group, gradient_as_bucket_view=True),
    "small buckets": lambda rank, group: ddp(rank, group, bucket_cap_mb=0.003),
    "torch.compile": compiled,
    "fp16_compress_hook": lambda rank, group: with_hook(rank, group, "fp16"),
    "powerSGD_hook": lambda rank, group: with_hook(rank, group, "powerSGD"),
    "PostLocalSGD": local_sgd,
    "ZeroRedundancyOptimizer": zero,
    "join": join,
    "replicate": composable,
    "FSDP1 NO_SHARD": fsdp1_no_shard,
}


def on_both_backends(rank: Any, reducers: list[str], which: str) -> int:
    warnings.simplefilter("ignore")
    ours = dist.new_group(backend="reduction", pg_options=ReductionOptions(reducers=reducers))
    expected = DATA_PARALLEL[which](rank, dist.group.WORLD)
    result = DATA_PARALLEL[which](rank, ours)
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    return passed_through(ours)


@pytest.mark.parametrize("which", DATA_PARALLEL)
def test_data_parallel_matches_gloo(ranks: Any, reducers: Callable[[int], list[str]], which: str) -> None:
    counts = ranks.run(2, on_both_backends, reducers(2), which)
    assert counts[0] == counts[1] >= 2


# ---- HSDP: shards within a node, copies across nodes ----


def hsdp(rank: Any, mesh: Any, clip: float | None = None, **options: Any) -> nn.Module:
    model = new_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    train(rank, model, torch.optim.AdamW(model.parameters(), 0.01), clip)
    return model


def all_reduce_hook(rank: Any, mesh: Any) -> nn.Module:
    """Shard within a node with FSDP2, and all-reduce across nodes with a hook."""
    model, group = new_model(), mesh["replicate"].get_group()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in (*layers, model):
        fully_shard(layer, mesh=mesh["shard"])
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(lambda grad: dist.all_reduce(grad, dist.ReduceOp.AVG, group=group))
    train(rank, model, torch.optim.AdamW(model.parameters(), 0.01))
    return model


def fsdp1_hybrid(rank: Any, mesh: Any) -> nn.Module:
    groups = mesh["shard"].get_group(), mesh["replicate"].get_group()
    strategy, cpu = ShardingStrategy.HYBRID_SHARD, torch.device("cpu")
    model = FullyShardedDataParallel(
        new_model(), process_group=groups, sharding_strategy=strategy, device_id=cpu, use_orig_params=True
    )
    train(rank, model, sgd(model))
    return model


def saved(rank: Any, mesh: Any, folder: str) -> nn.Module:
    """Train, save, load into another model, and return that model."""
    trained, loaded = hsdp(rank, mesh), hsdp(rank, mesh, clip=0.1)
    path = Path(folder, dist.get_backend(mesh["replicate"].get_group()))
    state, other = get_model_state_dict(trained), get_model_state_dict(loaded)
    checkpoint.save(state, checkpoint_id=path)
    checkpoint.load(other, checkpoint_id=path)
    assert all(torch.equal(a, b) for a, b in zip(whole(trained), whole(loaded), strict=True))
    return loaded


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
HYBRID: dict[str, Callable[..., nn.Module]] = {
    "HSDP": lambda rank, mesh, _: hsdp(rank, mesh),
    "clipped": lambda rank, mesh, _: hsdp(rank, mesh, clip=0.5),
    "bfloat16": lambda rank, mesh, _: hsdp(rank, mesh, mp_policy=BF16),
    "set_all_reduce_hook": lambda rank, mesh, _: all_reduce_hook(rank, mesh),
    "FSDP1 HYBRID_SHARD": lambda rank, mesh, _: fsdp1_hybrid(rank, mesh),
    "checkpoint": saved,
}


def hybrid(rank: Any, reducers: list[str], which: str, folder: str) -> int:
    warnings.simplefilter("ignore")
    os.environ["REDUCTION_REDUCERS"] = ",".join(reducers)
    rank.cleanup.callback(os.environ.pop, "REDUCTION_REDUCERS")
    names = ("replicate", "shard")
    gloo = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    ours = init_device_mesh("cpu", (2, 2), mesh_dim_names=names, backend_override={"replicate": "reduction"})
    expected, result = (whole(HYBRID[which](rank, mesh, folder)) for mesh in (gloo, ours))
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    return passed_through(ours["replicate"].get_group())


@pytest.mark.parametrize("which", HYBRID)
def test_hybrid_sharding_matches_gloo(
    ranks: Any, reducers: Callable[[int], list[str]], which: str, tmp_path: Path
) -> None:
    counts = ranks.run(4, hybrid, reducers(2), which, str(tmp_path))
    assert len(set(counts)) == 1
    assert counts[0] >= STEPS
