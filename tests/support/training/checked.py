"""Training in rank processes, with every gradient checked."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import reduction_hook

#: Pause between steps, in seconds: tests mostly wait for something else meanwhile, and there are few cores.
PAUSE_S = 0.01


class Trainer:
    """A DDP model whose every gradient is checked."""

    def __init__(self, rank, state, hook=reduction_hook) -> None:
        torch.manual_seed(2)
        self.rank = rank
        self.model = nn.Sequential(
            nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 60), nn.Tanh(), nn.Linear(60, 5)
        )
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.02)
        self.ddp.register_comm_hook(state, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.steps = 0

    def step(self) -> None:
        def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
            return model(self.rank.values(rank, (6, 50), step=self.steps)).square().mean()

        expected = self.rank.mean_gradients(self.model, loss_of)
        self.optimizer.zero_grad()
        loss_of(self.ddp, self.rank.number).backward()
        for (name, parameter), gradient in zip(self.model.named_parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient), f"step {self.steps}: {name} is wrong"
        self.optimizer.step()
        self.steps += 1


def train_until_told(rank, reducers, job, settings):
    """Report every tenth step; continue until the test says stop."""
    with rank.state(reducers, job, **settings) as state:
        trainer = Trainer(rank, state)
        stop = torch.zeros(1)
        while not stop:
            trainer.step()
            if rank.number == 0 and trainer.steps % 10 == 0:
                rank.tell(trainer.steps)
            if rank.number == 0 and rank.has_news:
                stop += rank.hear()
            dist.broadcast(stop, 0)
            time.sleep(PAUSE_S)
        assert state.error is None
    return [parameter.detach().sum().item() for parameter in trainer.model.parameters()]
