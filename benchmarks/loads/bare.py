"""Our TCP plane without recovery, to measure the cost of recovery.

A contribution is pushed from the user's tensor, without a private copy that could be pushed again.
The result overwrites the tensor, so contributions are lost if a reducer dies.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch

from worker_plugin import ReductionState, client
from worker_plugin.communicator import Communicator
from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.staging import Staging
from worker_plugin.tensors.transfer import Transfer


class _Pool(ArenaPool):
    """A pool that keeps only the memory of results; contributions belong to the user."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: set[int] = set()

    def give(self, buffer: torch.Tensor) -> None:
        """Take back the memory of a result, and ignore that of a contribution."""
        if buffer.data_ptr() in self.lent:
            self.lent.discard(buffer.data_ptr())
        else:
            super().give(buffer)


class BareStaging(Staging):
    """Staging without copies, for contiguous tensors on the CPU."""

    def __init__(self, pool: ArenaPool, on_staged: Callable[[Transfer], None]) -> None:
        self._bare_pool = _Pool()
        super().__init__(self._bare_pool, on_staged)

    def begin(self, work: Transfer) -> None:
        """Push from the tensor itself."""
        contribution = work.tensor.reshape(-1).view(torch.uint8)
        self._bare_pool.lent.add(contribution.data_ptr())
        work.own(contribution)


class BareState(ReductionState):
    """A state whose communicator keeps no contributions."""

    def _connect(self, model: str) -> Communicator:
        with patch.object(client, "Staging", BareStaging):
            return super()._connect(model)
