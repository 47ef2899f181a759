"""A training script as users write it, for torchrun. Only the weights that it saves are for the tests.

The two lines from README are marked. Usage: torchrun ... train_script.py FOLDER EPOCHS
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from worker_plugin import ReductionState, reduction_hook

BATCH = 25


def build() -> tuple[TensorDataset, nn.Module]:
    """Return the data and the model, the same on every rank."""
    torch.manual_seed(0)
    inputs = torch.randn(600, 20)
    data = TensorDataset(inputs, (inputs[:, :3].sum(1) > 0).long())
    return data, nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 2))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main(folder: Path, epochs: int) -> None:
    """Train, and save the weights of every rank."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data, model = build()
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=2)
    ddp_model = DistributedDataParallel(model)

    state = ReductionState()  # <- with the addresses in REDUCTION_REDUCERS, or nowhere
    ddp_model.register_comm_hook(state, reduction_hook)  # <-

    optimizer = sgd(ddp_model)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp_model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
    torch.save((losses, ddp_model.module.state_dict()), folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
