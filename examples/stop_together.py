"""Stop all ranks in the same step, with one checkpoint, when any of them is told to stop.

    reducer run -- torchrun --standalone --nproc-per-node 2 examples/stop_together.py

Send SIGTERM to any of the training processes, as schedulers do before they take a machine away. With
REDUCTION_NOTICES=auto, the cloud's notices count too. All ranks leave the loop in the same step, and rank 0 writes a
checkpoint of it. Run the command again to continue from there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reduction_server as rs


def main() -> None:
    """Train until all steps are done or any rank is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    first = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp_model = DistributedDataParallel(model)
    state = rs.attach(ddp_model)

    for step in range(first, options.steps):
        generator = torch.Generator().manual_seed(2 * step + rank)
        optimizer.zero_grad()
        ddp_model(torch.randn(16, 64, generator=generator)).square().mean().backward()
        optimizer.step()
        if state.should_stop():
            if rank == 0:
                saved = {
                    "step": step + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                torch.save(saved, options.checkpoint)
            print(f"rank {rank} stops after step {step}", flush=True)
            break
        if step == first:
            print(f"rank {rank} trains from step {step} on", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
