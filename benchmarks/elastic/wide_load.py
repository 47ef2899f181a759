"""One worker of an elastic job with a large state: MEGABYTES of weights and Adam's moments, STEPS steps."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.elastic.load import say
from worker_plugin import ReductionState, attach


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = ReductionState(elastic=True)
    width = int((int(os.environ["MEGABYTES"]) * 1e6 / 3 / 4 / 4) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)
    attach(ddp_model, state)
    pause_s, steps = float(os.environ["PAUSE_S"]), int(os.environ.get("STEPS", "1000000"))
    inputs = torch.randn(1, width)
    say(step=-1, members=[])
    for step in range(steps):
        state.sync(model, optimizer)
        optimizer.zero_grad()
        ddp_model(inputs).pow(2).mean().backward()
        optimizer.step()
        say(step=step, members=state.members)
        time.sleep(pause_s)
    state.close()


if __name__ == "__main__":
    main()
