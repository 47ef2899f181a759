"""What every rank of `benchmarks.chaos` runs: the demo's CNN learns digits under DDP, every step timed.

Everything a step computes follows from the seed and the number of the step, so two trainings of as many steps must
end with the same bits, whatever happened to the reducers meanwhile.
"""

from __future__ import annotations

import faulthandler
import hashlib
import logging
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.demo.digits import BATCH, cnn
from benchmarks.lab.ranks import Rank
from worker_plugin import ReductionState, reduction_hook

#: A step that takes longer is a hang, in seconds: all threads' stacks go to stderr then.
HANG_S = 60.0
#: The CNN's 0.6 MB of gradients in four buckets, so that a kill may meet several collectives.
BUCKET_MB = 0.2
_LEARNING_RATE = 0.05


class Slice(NamedTuple):
    """What one rank did in a row of steps. Times are the monotonic clock's, which all processes share."""

    begun_s: list[float]
    done_s: list[float]
    #: sha256 of all parameters after the last step.
    digest: str


class ChaosTraining:
    """A training from the same start, as often as it is begun."""

    def __init__(self, rank: Rank, seed: int) -> None:
        # A lost reducer is the purpose here, and each costs a line on every rank.
        logging.getLogger("worker_plugin").setLevel(logging.ERROR)
        self._rank, self._seed = rank, seed
        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        self._labels = torch.tensor(digits.target)
        self._state: ReductionState | None = None

    def begin(self, reducers: Sequence[str], transport: str, job: str) -> None:
        """Start from the beginning, with a communicator of its own."""
        self.end()
        torch.manual_seed(self._seed)
        self._model = cnn()
        self._ddp_model = DistributedDataParallel(self._model, bucket_cap_mb=BUCKET_MB)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_LEARNING_RATE, momentum=0.9)
        self._state = ReductionState(reducers, job=job, transport=transport)
        self._ddp_model.register_comm_hook(self._state, reduction_hook)
        self._steps = 0

    def end(self) -> None:
        """Leave the job."""
        if self._state is not None:
            self._state.close()
            self._state = None

    def run(self, count: int) -> Slice:
        """Train that many steps more."""
        begun_s, done_s = [], []
        for _ in range(count):
            faulthandler.dump_traceback_later(HANG_S, file=sys.__stderr__ or sys.stderr)
            begun_s.append(time.monotonic())
            self._step()
            done_s.append(time.monotonic())
        faulthandler.cancel_dump_traceback_later()
        weights = b"".join(weight.detach().numpy().tobytes() for weight in self._model.parameters())
        return Slice(begun_s, done_s, hashlib.sha256(weights).hexdigest())

    def _step(self) -> None:
        number = self._steps * self._rank.world_size + self._rank.rank
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + number)
        chosen = torch.randint(len(self._labels), (BATCH,), generator=generator)
        self._optimizer.zero_grad()
        logits = self._ddp_model(self._images[chosen])
        nn.functional.cross_entropy(logits, self._labels[chosen]).backward()
        self._optimizer.step()
        self._steps += 1
