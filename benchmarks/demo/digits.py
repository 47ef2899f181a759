"""The demonstration: a small CNN learns scikit-learn's digits with DDP, over reducers and over plain Gloo.

    make demo        or        python -m benchmarks.demo [--epochs N]

Four workers train three times from the same start, on the same batches: over 2 reducers, over 3
reducers with another chunk size, and without any. The demo fails unless

- all four workers end with the same bits, and both trainings over reducers end with the same bits;
- the loss stays within LOSS_TOLERANCE of Gloo's. It is not identical to the last bit, because a
  ring adds in another order, and training propagates the rounding.

The times exclude the first epoch, in which processes warm up. Everything runs on this machine,
where payloads stay in shared memory and nothing waits for a network. `benchmarks.demo.network`
shows what reducers gain on a network, and `make bench` measures it. Chunks of 24 KiB are not a good
choice; they show that the bits do not depend on the chunk size.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from reduction.limits import KIB
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.lab.ranks import Rank, Ranks, RanksFailed
from benchmarks.lab.reducers import Reducers, own_token
from worker_plugin import ReductionState, reduction_hook

WORKERS = 4
EPOCHS = 8
BATCH = 30
#: Images for training out of 1797; the others are for the test. This number is a multiple of the
#: total batch of all workers.
TRAINING_IMAGES = 1440
#: Largest allowed difference between a step's loss and Gloo's. The loss begins at 2.3, and
#: differences of 2.4e-7 were seen, which is one rounding. Training on other machines may amplify
#: such a rounding.
LOSS_TOLERANCE = 1e-4

ONE_MACHINE = """
The times are those after the first epoch. Chunks of 24 KiB are no good choice; they show that bits do not depend on
it. On one machine no network is waited for, so this is not yet what reducers gain: `make demo-network` (as root) trains
on links of 200 Mbit/s, side by side with Gloo's ring."""


class DemoFailed(Exception):
    """The demonstration found a broken promise. The message names it."""


class Plan(NamedTuple):
    """One of the three trainings. Without reducers it uses DDP's own all-reduce."""

    name: str
    reducers: tuple[str, ...] = ()
    chunk_bytes: int | None = None


class Report(NamedTuple):
    """The outcome of a training on one worker: mean loss of each step over the workers, hash of the weights."""

    seconds: float
    losses: list[float]
    accuracy: float
    digest: str


class Training:
    """The workload of a rank process, see `benchmarks.lab.ranks`."""

    def __init__(self, rank: Rank) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        labels = torch.tensor(digits.target)
        self._training = TensorDataset(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])
        self._test = images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:]
        # torch's first backward pass is slow, so it is done before the trainings.
        cnn()(images[:BATCH]).sum().backward()

    def run(self, plan: Plan, epochs: int) -> Report:
        """Train from the same start as every other training."""
        torch.manual_seed(0)
        model = cnn()
        ddp_model = DistributedDataParallel(model)
        state = None
        if plan.reducers:
            state = ReductionState(plan.reducers, chunk_bytes=plan.chunk_bytes)
            ddp_model.register_comm_hook(state, reduction_hook)
            state.connect()  # Gloo has connected long ago
        dist.barrier()
        losses, seconds = self._train(ddp_model, epochs)
        if state is not None:
            state.close()
        dist.all_reduce(losses, dist.ReduceOp.SUM)
        with torch.no_grad():
            accuracy = (model(self._test[0]).argmax(1) == self._test[1]).float().mean().item()
        weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
        return Report(seconds, (losses / WORKERS).tolist(), accuracy, hashlib.sha256(weights).hexdigest())

    def _train(self, ddp_model: nn.Module, epochs: int) -> tuple[torch.Tensor, float]:
        """Return the loss of each step, and the seconds of all epochs except the first, which is the warm-up."""
        sampler: DistributedSampler[Any] = DistributedSampler(self._training, seed=0)
        loader = DataLoader(self._training, BATCH, sampler=sampler)
        optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for epoch in range(epochs):
            if epoch <= 1:
                started = time.monotonic()
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp_model(images), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses).double(), time.monotonic() - started


def cnn() -> nn.Module:
    convolutions = [
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
    ]
    head = [nn.ReLU(), nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*convolutions, *head)


def show(plans: Sequence[Plan], reports: Sequence[Report], epochs: int) -> None:
    """Print the throughput, and the loss of some epochs."""
    timed = max(epochs - 1, 1) / epochs
    print(f"\n{'':32} {'wall s':>8} {'steps/s':>9} {'samples/s':>10} {'accuracy':>9}")
    for plan, report in zip(plans, reports, strict=True):
        rate = timed * len(report.losses) / report.seconds
        speed = f"{report.seconds:8.2f} {rate:9.1f} {rate * WORKERS * BATCH:10.0f}"
        print(f"{plan.name:32} {speed} {report.accuracy:9.1%}")
    shown = sorted({1, 2, 3, epochs // 2, epochs} & set(range(1, epochs + 1)))
    print(f"\n{'mean loss of epoch':32}" + "".join(f"{epoch:>11}" for epoch in shown))
    for plan, report in zip(plans, reports, strict=True):
        by_epoch = torch.tensor(report.losses).view(epochs, -1).mean(1).tolist()
        print(f"{plan.name:32}" + "".join(f"{by_epoch[epoch - 1]:11.6f}" for epoch in shown))


def check(plans: Sequence[Plan], by_rank: Sequence[Sequence[Report]]) -> None:
    """Compare weights and losses, and print the outcome.

    Raises:
        DemoFailed: weights or losses differ where they must not.
    """
    for plan, reports in zip(plans, by_rank, strict=True):
        if len({report.digest for report in reports}) != 1:
            raise DemoFailed(f"{plan.name}: the workers ended with different weights")
    two, three, gloo = (reports[0] for reports in by_rank)
    print(f"\nfinal weights: the same bits on all {WORKERS} workers, in each training")
    if two.digest != three.digest:
        raise DemoFailed(f"{plans[0].name} and {plans[1].name} ended with different weights")
    print(f"over 2 and over 3 reducers: the same bits, sha256 {two.digest[:16]}...")
    difference = (torch.tensor(two.losses) - torch.tensor(gloo.losses)).abs().max().item()
    if not difference <= LOSS_TOLERANCE:  # also if it is NaN
        raise DemoFailed(
            f"a step's loss differs from Gloo's by {difference:.1e}, more than {LOSS_TOLERANCE:.0e}: rounding "
            f"does not explain that, so gradients must be wrong"
        )
    print(
        f"loss against plain Gloo DDP: differs by {difference:.1e} at most (tolerance {LOSS_TOLERANCE:.0e})"
    )


def demonstrate(epochs: int) -> None:
    began = time.monotonic()
    with (
        own_token(),
        closing(Reducers(3)) as reducers,
        closing(Ranks(WORKERS, reducers.addresses)) as ranks,
    ):
        plans = [
            Plan("2 reducers", tuple(reducers.addresses[:2])),
            Plan("3 reducers, chunks of 24 KiB", tuple(reducers.addresses), 24 * KIB),
            Plan("no reducers: DDP's Gloo ring"),
        ]
        size = sum(weight.numel() for weight in cnn().parameters())
        print(f"{WORKERS} workers, {epochs} epochs of {TRAINING_IMAGES} digits, CNN of {size:,} parameters")
        ranks.load(Training)
        by_rank = []
        for plan in plans:
            print(f"training: {plan.name} ... ", end="", flush=True)
            by_rank.append(ranks.call("run", plan, epochs))
            print(f"{by_rank[-1][0].seconds:.2f} s", flush=True)
    show(plans, [reports[0] for reports in by_rank], epochs)
    check(plans, by_rank)
    if left := multiprocessing.active_children():
        raise DemoFailed(f"processes were left behind: {left}")
    print(ONE_MACHINE)
    print(f"all processes are gone; {time.monotonic() - began:.0f} s in all")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="how often to see all digits")
    try:
        demonstrate(parser.parse_args().epochs)
    except (DemoFailed, RanksFailed) as error:
        sys.exit(f"demo failed: {error}")


if __name__ == "__main__":
    main()
