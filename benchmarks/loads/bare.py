"""Our TCP plane without what lets it push again, to see what that costs.

A contribution is pushed from the user's tensor, and no private copy of it is kept until every rank holds the result;
the tensor itself is overwritten then, so a new epoch could not ask for anything.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch

from worker_plugin import ReductionState, client
from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer


class _Pool(ArenaPool):
    """Has the results' memory; contributions belong to the user."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: set[int] = set()

    def give(self, buffer: torch.Tensor) -> None:
        """Take back a result's memory, and leave a contribution to its owner."""
        if buffer.data_ptr() in self.lent:
            self.lent.discard(buffer.data_ptr())
        else:
            super().give(buffer)


class BareStaging(Staging):
    """For contiguous tensors on the CPU."""

    def __init__(self, pool: ArenaPool, on_staged: Callable[[Transfer], None]) -> None:
        self._bare_pool = _Pool()
        super().__init__(self._bare_pool, on_staged)

    def begin(self, work: Transfer) -> None:
        """Push from the tensor."""
        contribution = work.tensor.reshape(-1).view(torch.uint8)
        self._bare_pool.lent.add(contribution.data_ptr())
        work.own(contribution)


class BareState(ReductionState):
    """A state whose communicator keeps no contributions."""

    def _connect(self) -> client.Client:
        with patch.object(client, "Staging", BareStaging):
            return super()._connect()
