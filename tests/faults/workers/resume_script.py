"""A training script with a checkpoint after each epoch, for torchrun --max-restarts. Its rank 1 is killed once.

Usage: torchrun ... resume_script.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from worker_plugin import ReductionState, reduction_hook

EPOCHS = 6
#: Rank 1 of the first life dies in this epoch, after this step's backward pass has begun on all ranks.
LAST_WORDS = (3, 4)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 2))


def batches(rank: int, world_size: int, num_workers: int = 0):
    """Return the loader of a rank."""
    inputs = torch.randn(400, 20, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs[:, :3].sum(1) > 0).long())
    sampler = DistributedSampler(data, world_size, rank, seed=1)
    return DataLoader(data, batch_size=25, sampler=sampler, num_workers=num_workers)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main(folder: Path) -> None:
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # torchrun's store survives a restart (torch 2.13), and Gloo finds its peers' addresses of the previous life in it.
    agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore(f"life-{life}", agents)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    loader = batches(rank, dist.get_world_size(), num_workers=2)
    ddp_model = DistributedDataParallel(model())
    state = ReductionState()
    ddp_model.register_comm_hook(state, reduction_hook)
    optimizer = optimizer_of(ddp_model.module)
    checkpoint, first = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        first, weights, moments = torch.load(checkpoint)
        ddp_model.module.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (features, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp_model(features), labels)
            if (rank, life, epoch, step) == (1, 0, *LAST_WORDS):
                # Its loader's children outlive it, and the others wait for its push.
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
        if rank == 0:
            fresh = folder / "checkpoint.tmp"
            torch.save((epoch + 1, ddp_model.module.state_dict(), optimizer.state_dict()), fresh)
            fresh.replace(checkpoint)
        dist.barrier()
    torch.save((life, first, ddp_model.module.state_dict()), folder / f"rank-{rank}.pt")
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
