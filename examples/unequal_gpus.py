"""Give GPUs of different speeds batches of different sizes, so that none waits for a slower one.

    reducer run -- torchrun --standalone --nproc-per-node 2 examples/unequal_gpus.py

Each rank measures how many samples per second it can do on its own, and a batch is split by these speeds. The gradients
are those of equal shares, except for rounding. Here rank 0 is made half as fast, and steps alternate between both ways.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs

#: Samples in a step over all ranks, and the width of the model.
BATCH, WIDTH = 3072, 512


def backward_pass(model: nn.Module, batch: torch.Tensor) -> None:
    """Add the gradients of a rank's share of a batch. On rank 0 this takes twice as long."""
    if dist.get_rank() == 0:
        inner = getattr(model, "module", model)
        torch.autograd.grad(inner(batch).square().mean(), list(inner.parameters()))
    model(batch).square().mean().backward()


def shares(speeds: list[float]) -> list[int]:
    """Return the number of samples of a batch for each rank."""
    ends = [round(BATCH * part / sum(speeds)) for part in accumulate(speeds, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]


def main() -> None:
    """Train with equal shares and with shares by speed in turn, and compare their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    state = rs.attach(ddp_model)

    speeds = torch.zeros(ranks, dtype=torch.float64)
    for _ in range(2):  # the first pass takes longer
        begin = time.perf_counter()
        backward_pass(model, torch.randn(BATCH // ranks, WIDTH))
        speeds[rank] = BATCH // ranks / (time.perf_counter() - begin)
    state.all_reduce(speeds).wait()
    sizes = {"equal": shares([1] * ranks), "by speed": shares(speeds.tolist())}
    times: dict[str, list[float]] = {way: [] for way in sizes}
    for step in range(2 * options.steps):
        way = ("equal", "by speed")[step % 2]
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
        mine, begin = batch.split(sizes[way])[rank], time.perf_counter()
        state.weigh(len(mine))
        optimizer.zero_grad()
        backward_pass(ddp_model, mine)
        optimizer.step()
        times[way].append(time.perf_counter() - begin)
    if rank == 0:
        for way, took in times.items():
            print(f"{way}: {sizes[way]} samples, {statistics.median(took):.4f} s per step", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
