"""Creates a state before the tests, for those that want no thread and no variable to outlive them.

The threads of the I/O loop and of gRPC, and gRPC's variables, belong to the process, so they exist beforehand.
"""

from __future__ import annotations

import os

import torch

from worker_plugin import ReductionState

with ReductionState(job=f"before-{os.getpid()}", rank=0, world_size=1) as state:
    state.all_reduce(torch.ones(1)).wait()
