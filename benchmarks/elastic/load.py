"""One worker of the training whose workers are killed: a small CNN on scikit-learn's digits.

It writes a line of JSON after every step. With CHECKPOINT, a file, it is the rival: a script under torchrun over Gloo
that restores from this file and saves to it every CHECKPOINT_S. With MEGABYTES it is a worker of an elastic job with a
large state, for STEPS steps. Otherwise it is a worker of an elastic job that learns digits.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.method.history import History

if TYPE_CHECKING:
    from worker_plugin.client import Client
    from worker_plugin.config import PluginConfig
    from worker_plugin.elastic.membership.lineage import Worker

BATCH = 16


class Training:
    """Model, optimizer and data, which are the same in all workers with the same seed."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.02, momentum=0.9)
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)

    def step(self, model: nn.Module, batch: list[int]) -> float:
        """Train on these samples, and return their mean loss."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(self.images[batch]), self.labels[batch])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def digest(self) -> str:
        """Return a hash of the weights and momenta."""
        momenta = [one["momentum_buffer"] for one in self.optimizer.state.values()]
        tensors = [*(parameter.detach() for parameter in self.net.parameters()), *momenta]
        return hashlib.blake2b(b"".join(one.numpy().tobytes() for one in tensors), digest_size=8).hexdigest()


def elastic(pause_s: float, until: Callable[[], bool]) -> None:
    """Take part in an elastic job until the stop file exists."""
    from worker_plugin import ReductionState, attach
    from worker_plugin.elastic.sampler import ElasticSampler

    histories = _watch_generations(Path(folder)) if (folder := os.environ.get("HISTORY")) else []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = ReductionState(elastic=True)
    rank = state.config.rank
    assert rank is not None
    training = Training(rank)
    model = DistributedDataParallel(training.net, find_unused_parameters=True)
    attach(model, state)
    sampler = ElasticSampler(len(training.images), BATCH)
    chance = torch.Generator().manual_seed(os.getpid())
    step, stops = 0, False
    while not stops:
        extra = state.sync(training.net, training.optimizer, {"step": step, "sampler": sampler.state_dict()})
        step = extra["step"]
        sampler.load_state_dict(extra["sampler"])
        batch = sampler.take(state.members, rank)
        for history in histories:
            history.record("state", step=step, digest=training.digest(), ranks=state.members)
            history.reduce(state, chance, "part", step=step)
        loss = training.step(model, batch)
        flag = torch.tensor([until()], dtype=torch.int32)
        state.all_reduce(flag).wait()
        step, stops = step + 1, bool(flag)
        say(
            step=step,
            members=state.members,
            digest=training.digest(),
            loss=loss,
            samples=len(batch),
            batch=batch,
            epoch=sampler.epoch,
        )
        time.sleep(pause_s)
    for history in histories:
        history.record("over", step=step)
    state.close()


def _watch_generations(folder: Path) -> list[History]:
    """Return a list that will hold this worker's history, which records all generations that the worker joins."""
    from worker_plugin.elastic import forming
    from worker_plugin.elastic.membership.lineage import Generation

    join, histories = forming.client_of, list[History]()

    def client_of(config: PluginConfig, own: Worker, generation: Generation, local_size: int) -> Client:
        if not histories:
            histories.append(History(folder / f"{own.rank}-{os.getpid()}", job=config.job, worker=_name(own)))
        members = [_name(worker) for worker in generation.workers]
        newcomers = [_name(worker) for worker in generation.newcomers]
        histories[0].record(
            "joined", number=generation.number, id=generation.id, members=members, newcomers=newcomers
        )
        return join(config, own, generation, local_size)

    forming.client_of = client_of
    return histories


def _name(worker: Worker) -> str:
    return f"{worker.rank}/{worker.nonce[:8]}"


def restarted(pause_s: float, until: Callable[[], bool], checkpoint: Path, every_s: float) -> None:
    """Train under torchrun over Gloo, starting from the last checkpoint."""
    # Without a prefix per restart, the ranks find the addresses of earlier ranks in torchrun's store (2.13), and fail
    # several times.
    store, rank, size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    training = Training(0)
    model = DistributedDataParallel(training.net)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        training.net.load_state_dict(saved["net"])
        training.optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    saved_at, stops = time.monotonic(), False
    order = torch.randperm(len(training.images), generator=torch.Generator().manual_seed(1)).tolist()
    while not stops:
        start = (step * size + rank) * BATCH % (len(order) - BATCH)
        loss = training.step(model, order[start : start + BATCH])
        flag = torch.tensor([until()], dtype=torch.int32)
        dist.all_reduce(flag)
        step, stops = step + 1, bool(flag)
        say(step=step, members=list(range(size)), digest=training.digest(), loss=loss, samples=BATCH, epoch=0)
        if rank == 0 and time.monotonic() >= saved_at + every_s:
            saved_at = time.monotonic()
            state = {
                "net": training.net.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "step": step,
            }
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
        time.sleep(pause_s)


def wide(pause_s: float, megabytes: int, steps: int) -> None:
    """Take part in an elastic job with `megabytes` of weights and Adam's moments, for a number of steps."""
    from worker_plugin import ReductionState, attach

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = ReductionState(elastic=True)
    width = int((megabytes * 1e6 / 3 / 4 / 4) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)
    attach(ddp_model, state)
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


def say(**line: object) -> None:
    """Append a line to this worker's file."""
    path = (
        Path(os.environ["OUT"]) / f"{os.environ.get('REDUCTION_RANK', os.environ.get('RANK'))}-{os.getpid()}"
    )
    with path.open("a") as file:
        file.write(json.dumps(line | {"at": time.monotonic()}) + "\n")


if __name__ == "__main__":
    stop = Path(os.environ["STOP"])
    pause = float(os.environ["PAUSE_S"])
    if "CHECKPOINT" in os.environ:
        restarted(pause, stop.exists, Path(os.environ["CHECKPOINT"]), float(os.environ["CHECKPOINT_S"]))
    elif "MEGABYTES" in os.environ:
        wide(pause, int(os.environ["MEGABYTES"]), int(os.environ.get("STEPS", "1000000")))
    else:
        elastic(pause, stop.exists)
