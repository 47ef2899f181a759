"""Our TCP plane without what makes it survive failures, to see what that costs.

A contribution is pushed from the user's tensor and its result received into it: there is no private copy, so nothing
could be pushed again in another epoch, and a failure would leave a half-written tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch

from worker_plugin import ReductionState, client
from worker_plugin.staging import ArenaPool, Staging, Work


class _NoPool(ArenaPool):
    def give(self, buffer: torch.Tensor) -> None:
        """Leave it to its owner."""


class BareStaging(Staging):
    """For contiguous tensors on the CPU."""

    def __init__(self, pool: ArenaPool, on_staged: Callable[[Work], None]) -> None:
        super().__init__(_NoPool(), on_staged)

    def begin(self, work: Work) -> None:
        """Push from the tensor, and receive into it: a chunk's result comes after all of it was sent."""
        work.own(work.tensor.reshape(-1).view(torch.uint8))
        work.result, work.result_bytes = work.contribution, work.contribution_bytes

    def deliver(self, work: Work) -> None:
        """Complete the future: the result is there already."""
        self._queue.put(lambda: work.future.set_result(work.tensor))


class BareState(ReductionState):
    """A state whose communicator has no private memory."""

    def _connect(self) -> client.Client:
        with patch.object(client, "Staging", BareStaging):
            return super()._connect()
