"""Give GPUs of different speeds batches of different sizes, so that none waits for a slower one.

    reducer run -- torchrun --standalone --nproc-per-node 2 examples/unequal_gpus.py

Each rank measures how many samples per second it does by itself, and all share a batch by these speeds. The gradients
are those of equal shares, but for rounding. Here rank 0 is made half as fast as it is. At the end it prints how long a
step takes with equal shares and by speed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs


def backward_pass(ddp_model: nn.Module, batch: torch.Tensor, *, alone: bool = False) -> None:
    """Compute the gradients of a rank's share of the batch, and average them unless it is alone."""
    for times in range(2 if dist.get_rank() == 0 else 1):  # rank 0 does it twice, and uses the second time
        ddp_model.zero_grad()
        is_last = times == 1 or dist.get_rank() > 0
        with nullcontext() if is_last and not alone else ddp_model.no_sync():  # type: ignore[operator]
            ddp_model(batch).square().mean().backward()


def speed_of(ddp_model: nn.Module, batch: torch.Tensor) -> float:
    """Return how many samples per second this rank does by itself."""
    for warm_up in (True, False):
        begin = time.perf_counter()
        for _ in range(1 if warm_up else 3):
            backward_pass(ddp_model, batch, alone=True)
    return 3 * len(batch) / (time.perf_counter() - begin)


def borders(size: int, speeds: list[float]) -> list[int]:
    """Return where each rank's share of a batch begins, and the end."""
    return [round(size * done / sum(speeds)) for done in accumulate(speeds, initial=0.0)]


def main() -> None:
    """Train with equal shares and by speed in turn, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=768, help="samples of all ranks together")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ddp_model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
    optimizer = torch.optim.SGD(ddp_model.parameters(), 0.05)
    state = rs.attach(ddp_model)

    speeds = torch.zeros(ranks, dtype=torch.float64)
    speeds[rank] = speed_of(ddp_model, torch.randn(options.batch // ranks, 512))
    state.all_reduce(speeds).wait()
    shares = {
        "equal": borders(options.batch, [1.0] * ranks),
        "by speed": borders(options.batch, speeds.tolist()),
    }
    times: dict[str, list[float]] = {way: [] for way in shares}
    for step in range(2 * options.steps):
        way = ("equal", "by speed")[step % 2]
        batch = torch.randn(options.batch, 512, generator=torch.Generator().manual_seed(step))
        mine = batch[shares[way][rank] : shares[way][rank + 1]]
        begin = time.perf_counter()
        state.weigh(len(mine))
        backward_pass(ddp_model, mine)
        optimizer.step()
        times[way].append(time.perf_counter() - begin)
    if rank == 0:
        for way, ends in shares.items():
            sizes = [end - begin for begin, end in pairwise(ends)]
            print(
                f"{way}: {sizes} samples, {1000 * statistics.median(times[way]):.1f} ms per step", flush=True
            )
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
