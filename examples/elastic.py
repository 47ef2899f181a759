"""Train on machines that come and go: the others continue without losing a step, and new ones join.

    REDUCTION_RANK=0 REDUCTION_WORLD_SIZE=3 python examples/elastic.py     and so on, ranks 1 and 2

Run this on each worker, under any supervisor that restarts it after a failure. REDUCTION_JOB and REDUCTION_REDUCERS
name the job and the reducers, and REDUCTION_RUN is a text that is new for every training. Kill a worker at any time,
and restart it. docs/elastic.md describes what happens.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reduction_server import ReductionState, attach
from reduction_server.elastic import ElasticSampler


def main() -> None:
    """Train a small model for some epochs. The first worker prints the loss every 20 steps."""
    parser = argparse.ArgumentParser(description="Elastic training.")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    # DDP gets a process group with only this process. A group that spans workers would hang when one dies.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    state = ReductionState(elastic=True)
    attach(ddp_model, state)
    rank = state.config.rank

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 64, generator=generator)
    labels = (inputs @ torch.randn(64, 10, generator=generator)).argmax(1)
    sampler = ElasticSampler(len(inputs), batch_size=16)

    @state.on_change
    def scale(before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Keep the step size per sample constant. Whether that is right depends on your training."""
        for group in optimizer.param_groups:
            group["lr"] *= len(after) / len(before)

    step = 0
    while sampler.epoch < options.epochs:
        extra = state.sync(model, optimizer, {"step": step, "sampler": sampler.state_dict()})
        step = extra["step"]
        sampler.load_state_dict(extra["sampler"])
        batch = sampler.take(state.members, rank)

        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp_model(inputs[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        step += 1
        if rank == state.members[0] and step % 20 == 0:
            print(
                f"epoch {sampler.epoch} step {step}: {len(state.members)} workers, loss {loss:.4f}",
                flush=True,
            )
        if state.should_leave():  # after SIGTERM; with REDUCTION_NOTICES=auto after a cloud's notice, too
            state.leave()
            break
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {rank} done after {step} steps, weights {weights.hex()}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
