"""The DDP communication hook."""
# No `from __future__ import annotations`: DDP compares the hook's annotations with real types.

import torch
from torch._C._distributed_c10d import GradBucket

from worker_plugin.bridge import failed, raise_in_waiter
from worker_plugin.state import ReductionState


def reduction_hook(state: ReductionState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks through the reducers; for `ddp_model.register_comm_hook`.

    Runs on the backward thread with DDP's mutex held: it queues the bucket and returns at once. It never
    raises, which would leave the DDP object unusable; errors come through the future, as RuntimeError with
    the error's name and text, and typed as `state.error`.
    """
    try:
        future = state.reduce_bucket(bucket)
    except Exception as error:  # of whatever kind: DDP would be left in the middle of its backward pass
        future = failed(error)
    return raise_in_waiter(future)
