"""Train with batches of different sizes, and get the gradients of a single process that has all samples.

    reducer run -- torchrun --standalone --nproc-per-node 3 examples/unequal_batches.py

Rank r has 8 * (r + 1) samples in each step, but rank 1 has none in every fifth step. At the end rank 0 compares the
gradients of the last step with those that it computes alone from all ranks' samples.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs


def batch_of(rank: int, step: int) -> torch.Tensor:
    """Return a rank's samples in a step."""
    size = 0 if rank == 1 and step % 5 == 4 else 8 * (rank + 1)
    return torch.randn(size, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean over the samples, or without samples a zero that depends on all parameters."""
    if not len(batch):
        return 0.0 * model(torch.zeros(1, 64)).sum()
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def main() -> None:
    """Train, and compare the last step's gradients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ddp_model = DistributedDataParallel(model)
    state = rs.attach(ddp_model)

    alone = model
    for step in range(options.steps):
        batch = batch_of(rank, step)
        state.weigh(len(batch))
        alone = copy.deepcopy(model)
        optimizer.zero_grad()
        loss_of(ddp_model, batch).backward()
        optimizer.step()
    if rank == 0:
        alone.zero_grad()
        loss_of(alone, torch.cat([batch_of(one, options.steps - 1) for one in range(ranks)])).backward()
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        differences = [(one.grad - other.grad).abs().max() / other.grad.abs().max() for one, other in pairs]
        print(f"gradients differ by at most {max(differences):.1e} from those of one process", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
