"""Train with HSDP: FSDP2 shards the model within a node, and reducers average its copies across nodes.

    torchrun --nproc-per-node 4 examples/hsdp.py                        on this machine, two "nodes" of two ranks
    torchrun --nnodes 4 --nproc-per-node 8 ... examples/hsdp.py --shard 8 --device cuda

REDUCTION_REDUCERS names the reducers. Each rank of a node averages its own shard with its peers on other nodes,
so each shard has its own job.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train a small model for some steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shard", type=int, default=2, help="ranks of a node, among which the model is sharded"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", default="reduction", help="across nodes; compare with gloo or nccl")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    if options.device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = init_device_mesh(
        options.device,
        (dist.get_world_size() // options.shard, options.shard),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": options.backend},
    )
    torch.manual_seed(0)
    width = options.width
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)))
    model.to(options.device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    torch.manual_seed(dist.get_rank())
    for step in range(options.steps):
        inputs = torch.randn(16, width, device=options.device)
        loss = (model(inputs) - inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
