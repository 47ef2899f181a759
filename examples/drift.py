"""Find out which rank's weights differ from the others', here after a bit of one weight has flipped.

    reducer run -- torchrun --standalone --nproc-per-node 4 examples/drift.py

Every 10 steps all ranks compare digests of their weights. From step 25 on, one weight of rank 2 has a flipped bit, as
after a memory error. In step 31 all ranks know.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs


def main() -> None:
    """Train until all steps are done or ranks differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--flip-in", type=int, default=25, help="step; 0: in none")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ddp_model = DistributedDataParallel(model)
    state = rs.attach(ddp_model)
    state.watch(ddp_model, every=10, optimizer=optimizer)

    try:
        for step in range(1, options.steps + 1):
            if step == options.flip_in and rank == 2:
                model[2].weight.data.view(torch.int32)[3, 5] ^= 1 << 22
            optimizer.zero_grad()
            ddp_model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
    except RuntimeError as error:
        if not isinstance(state.error, rs.errors.ReplicasDiffer):
            raise
        print(f"rank {rank} ends in step {step}: {error}", flush=True)
    else:
        print(f"rank {rank} has weights {rs.digest(model)}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
