"""A sum that gives each rank the values of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist

from worker_plugin.tensors.futures import Future

#: Begins an in-place reduction over all ranks.
AllReduce: TypeAlias = Callable[[torch.Tensor, dist.ReduceOp.RedOpType], Future]


class Waitable(Protocol):
    """A collective in flight."""

    def wait(self) -> object:
        """Return when its tensor has the result."""


class Table:
    """A row of int64 for each rank.

    Each rank fills in its own row and leaves the others at zero, so the sum over all ranks is the whole table. A 1 at
    the beginning of a row shows that its rank took part; a lost worker of an elastic job has none.

    Args:
        places: the names of the ranks that take part, and this rank's index among them.
        values: of this rank; a one-dimensional tensor.
        all_reduce: begins an in-place sum over all ranks, of a tensor on the device of the values.
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
        """Wait for the sum, and return the values of each rank that took part.

        Raises:
            ReductionError: the error that ended the communicator.
        """
        self._sum.wait()
        table = zip(self._names, self._table.tolist(), strict=True)
        return [(name, values) for name, (is_there, *values) in table if is_there]
