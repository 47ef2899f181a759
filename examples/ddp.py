"""DistributedDataParallel over reducers: the same script as over NCCL or Gloo, plus one line.

    torchrun --nproc-per-node 2 examples/ddp.py

By default rank 0 starts a private reducer on this host. With several hosts, start `reducer serve` on each
reducer machine, and set REDUCTION_REDUCERS=HOST:PORT,HOST:PORT,... for all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reduction_server import attach

STEPS, BATCH = 20, 32


def main() -> None:
    """Teach a small network to add up its inputs."""
    # Or "nccl". The ranks find each other through this group, and the script may use it for anything else.
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # every rank has its own data; DDP broadcasts rank 0's weights
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    state = attach(model)  # the additional line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
