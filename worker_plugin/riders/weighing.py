"""Averages that weight each rank by its number of samples."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from reduction.errors import ConfigError

from worker_plugin.riders.table import AllReduce
from worker_plugin.tensors.futures import Future

#: float64, which no `wire_dtype` rounds, represents all whole numbers up to here.
SAMPLES_MAX = 1 << 53


class Weighing:
    """The weight of this rank's gradients in one communicator.

    An average of n ranks is (g_1 + ... + g_n) / n. If rank r has s_r samples, and all ranks together have S, its
    gradient is first multiplied by n * s_r / S. So the average is (s_1 * g_1 + ... + s_n * g_n) / S.
    """

    def __init__(self) -> None:
        self._own = 0.0
        #: Number of ranks in the present backward pass.
        self._ranks = 0
        self._sum: Future | None = None
        #: Whether `weigh` was called since the last backward pass.
        self._is_new = False

    @property
    def is_on(self) -> bool:
        """Whether `weigh` was ever called."""
        return self._sum is not None

    def weigh(self, samples: float, all_reduce: AllReduce) -> None:
        """Begin to add up the samples of all ranks; see `ReductionState.weigh`."""
        if (
            isinstance(samples, bool)
            or not isinstance(samples, (int, float))
            or not (math.isfinite(samples) and 0 <= samples <= SAMPLES_MAX)
        ):
            raise ConfigError(
                f"the samples are {samples!r}: pass how many this rank has in this step, from 0 to {SAMPLES_MAX}"
            )
        self._own = float(samples)
        self._sum = all_reduce(torch.tensor([self._own], dtype=torch.float64), dist.ReduceOp.SUM)
        self._is_new = True

    def begin(self, all_reduce: AllReduce, ranks: int, *, is_joining: bool) -> None:
        """Begin a backward pass. While DDP's `join` is active, a rank without more data has weight zero."""
        if is_joining and not self._is_new:
            self.weigh(0, all_reduce)
        self._is_new, self._ranks = False, ranks

    def apply(self, gradients: torch.Tensor) -> None:
        """Multiply this rank's gradients by their weight in an average over all ranks, in place.

        Raises:
            ConfigError: no rank has any samples; raised on all ranks.
            ReductionError: the error that ended the communicator.
        """
        assert self._sum is not None  # it is on
        total = float(self._sum.wait())
        if not total:
            raise ConfigError(
                "state.weigh(0) was called on all ranks: skip the backward pass there where no rank has samples"
            )
        gradients.mul_(self._ranks * self._own / total)
