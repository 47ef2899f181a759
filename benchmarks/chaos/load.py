"""The workload of the chaos tool, run by every rank: the demo's CNN learns digits under DDP, and every step is timed.

The data of a step depend only on the seed and the number of the step. So two trainings with the
same number of steps must end with the same bits, whatever happened to the reducers.
"""

from __future__ import annotations

import faulthandler
import hashlib
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.demo.digits import BATCH, cnn
from benchmarks.lab.ranks import Rank
from benchmarks.method.history import SUMS, History
from worker_plugin import ReductionState, reduction_hook

#: A step that takes longer than this, in seconds, counts as a hang, and the stacks of all threads
#: are written to stderr.
HANG_S = 60.0
#: DDP's bucket size. The CNN's 0.6 MB of gradients become four buckets, so that a kill can
#: interrupt several collectives.
BUCKET_MB = 0.2
_LEARNING_RATE = 0.05


class Slice(NamedTuple):
    """Consecutive steps of one rank. Times are those of the monotonic clock, which all processes share."""

    begun_s: list[float]
    done_s: list[float]
    #: sha256 of all parameters after the last step.
    digest: str


class ChaosTraining:
    """A training that can be repeated from the same start."""

    def __init__(self, rank: Rank, seed: int, folder: Path | None = None) -> None:
        # Losing reducers is intended here, and every rank would log every loss.
        logging.getLogger("worker_plugin").setLevel(logging.ERROR)
        self._rank, self._seed = rank, seed
        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        self._labels = torch.tensor(digits.target)
        self._state: ReductionState | None = None
        self._folder = folder
        self._history: History | None = None

    def begin(self, reducers: Sequence[str], transport: str, colocated: str | None, job: str) -> None:
        """Start from the beginning, with a new communicator."""
        self.end()
        torch.manual_seed(self._seed)
        self._model = cnn()
        self._ddp_model = DistributedDataParallel(self._model, bucket_cap_mb=BUCKET_MB)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_LEARNING_RATE, momentum=0.9)
        self._state = ReductionState(reducers or None, job=job, transport=transport, colocated=colocated)
        self._ddp_model.register_comm_hook(self._state, reduction_hook)
        self._steps = 0
        if self._folder is not None:
            path = self._folder / f"{job}-{self._rank.rank}"
            self._history = History(path, job=job, life=1, rank=self._rank.rank)

    def end(self) -> None:
        """Leave the job."""
        if self._state is not None:
            self._state.close()
            self._state = None
            if self._history is not None:
                self._history.record("over")

    def run(self, count: int) -> Slice:
        """Train `count` more steps."""
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
        if self._history is not None:
            self._history.reduce(self._state, generator, "seq", first=self._steps * len(SUMS))
        self._steps += 1
