"""A sum that tells each rank what all of them say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist

from worker_plugin.tensors.futures import Future

#: Begins a reduction over all ranks, in place.
AllReduce: TypeAlias = Callable[[torch.Tensor, dist.ReduceOp.RedOpType], Future]


class Waitable(Protocol):
    """A collective that is under way."""

    def wait(self) -> object:
        """Return when its tensor has the result."""


class Table:
    """A row of int64 for each rank.

    Each rank fills in its own row and leaves the others at zero, so the sum over all ranks is the whole table. A 1 at
    the beginning of a row says that its rank was there; a worker of an elastic job that was lost meanwhile has none.

    Args:
        places: the names of the ranks that take part, and the index of this one among them.
        values: of this rank: a tensor of one dimension.
        all_reduce: begins a sum over all ranks, in place, of a tensor on the device of the values.
    """

    def __init__(
        self,
        places: tuple[list[str], int],
        values: torch.Tensor,
        all_reduce: Callable[[torch.Tensor], Waitable],
    ) -> None:
        self._names, own = places
        #: This rank's name, and whether it is the first one of all.
        self.own, self.is_first = self._names[own], own == 0
        self._table = torch.zeros(len(self._names), 1 + len(values), dtype=torch.int64, device=values.device)
        self._table[own, 0], self._table[own, 1:] = 1, values
        self._sum = all_reduce(self._table)

    def rows(self) -> list[tuple[str, list[int]]]:
        """Wait for the sum, and return what each rank that was there has said.

        Raises:
            ReductionError: what has ended the communicator.
        """
        self._sum.wait()
        table = zip(self._names, self._table.tolist(), strict=True)
        return [(name, values) for name, (is_there, *values) in table if is_there]
