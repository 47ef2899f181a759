"""Which samples each worker of an elastic job takes in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from reduction.errors import ConfigError


class ElasticSampler:
    """Deals each sample of an epoch once, step by step, to the workers that are present.

    All workers create it with the same arguments and call `take` in every step, after `state.sync`, whose
    `extra` carries `state_dict` to new workers. If too few samples remain at the end of an epoch to give each
    worker one, they come first in the next epoch.

    Args:
        size: number of samples in the data set.
        batch_size: per worker.
        seed: of the order, which differs in each epoch.
        shuffle: if False, samples come in the order of the data set.

    Raises:
        ConfigError: a number is not positive.
    """

    def __init__(self, size: int, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if size < 1 or batch_size < 1:
            raise ConfigError(f"size is {size} and batch_size is {batch_size}: both must be at least 1")
        self._size, self._batch_size = size, batch_size
        self._seed, self._shuffle = seed, shuffle
        #: The epoch that the next step belongs to, from 0.
        self.epoch = 0
        #: Number of samples that were dealt to workers that were gone by the next step. It is unknown whether they
        #: counted.
        self.lost = 0
        self._position = 0
        self._left: list[int] = []
        self._dealt: dict[int, int] = {}
        self._order = self._order_of(0)

    def take(self, ranks: Sequence[int], rank: int) -> list[int]:
        """Return the samples of one worker for this step, at least one and at most `batch_size`.

        Args:
            ranks: the ranks that take part in the step, as in `state.members`.
            rank: this worker's rank.

        Raises:
            ConfigError: the data set has fewer samples than there are workers.
        """
        if self._size < len(ranks):
            raise ConfigError(f"the data set has {self._size} samples, too few for {len(ranks)} workers")
        self.lost += sum(count for old, count in self._dealt.items() if old not in ranks)
        if len(self._order) - self._position < len(ranks):
            self._left = self._order[self._position :]
            self.epoch += 1
            self._begin()
        end = min(len(self._order), self._position + len(ranks) * self._batch_size)
        borders = [
            self._position + (end - self._position) * index // len(ranks) for index in range(len(ranks) + 1)
        ]
        self._dealt = {
            other: borders[index + 1] - borders[index] for index, other in enumerate(sorted(ranks))
        }
        index = sorted(ranks).index(rank)
        self._position = end
        return self._order[borders[index] : borders[index + 1]]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as numbers and lists of numbers."""
        return {
            "epoch": self.epoch,
            "position": self._position,
            "left": list(self._left),
            "lost": self.lost,
            "dealt": dict(self._dealt),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another worker's sampler is."""
        is_elsewhere = (self.epoch, self._left) != (state["epoch"], state["left"])
        self.epoch, self._left, self.lost = state["epoch"], list(state["left"]), state["lost"]
        self._dealt = dict(state["dealt"])
        if is_elsewhere:
            self._begin()
        self._position = state["position"]

    def _begin(self) -> None:
        self._order = self._left + self._order_of(self.epoch)
        self._position = 0

    def _order_of(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self._size))
        generator = torch.Generator().manual_seed(self._seed + epoch)
        return torch.randperm(self._size, generator=generator).tolist()
