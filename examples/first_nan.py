"""Find the rank and parameter of the first NaN, and skip a step in which one rank runs out of memory.

    reducer run -- torchrun --standalone --nproc-per-node 4 examples/first_nan.py

Rank 1 runs out of memory in step 3, and rank 2 has a batch with an Inf in step 6. In both steps all ranks leave their
weights unchanged.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs


def main() -> None:
    """Train, and let rank 0 print which steps did not count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ddp_model = DistributedDataParallel(model)
    state = rs.attach(ddp_model)
    state.report_steps(ddp_model)

    for step in range(1, options.steps + 1):
        batch = torch.randn(16, 64)
        if (rank, step) == (2, 6):
            batch[3, 5] = torch.inf
        optimizer.zero_grad()
        try:
            loss = ddp_model(batch).square().mean()
            if (rank, step) == (1, 3):
                raise torch.OutOfMemoryError("an example")
            loss.backward()
        except torch.OutOfMemoryError:
            state.skip_step()
        if state.last_step.counts:
            optimizer.step()
        elif rank == 0:
            print(state.last_step, flush=True)

    print(f"rank {rank} has weights {rs.digest(model)}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
