"""Sums without DDP or any process group: ranks need a job name, a text that is new for every run, and the reducers'
addresses.

export REDUCTION_RUN=$(cat /proc/sys/kernel/random/uuid)
reducer serve --bind 127.0.0.1:50051 &
python examples/without_ddp.py 127.0.0.1:50051 0 2 &
python examples/without_ddp.py 127.0.0.1:50051 1 2
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from reduction_server import ReductionState


def main(reducers: str, rank: int, world_size: int) -> None:
    """Sum and average a tensor over all ranks."""
    with ReductionState(reducers, job="example", rank=rank, world_size=world_size) as state:
        total = torch.full((4,), float(rank))
        mean = torch.arange(4.0) * (rank + 1)
        # Both are in flight at the same time. A tensor may be read when its future is done.
        futures = [state.all_reduce(total), state.all_reduce(mean, op=dist.ReduceOp.AVG)]
        for future in futures:
            future.wait()
    print(f"rank {rank}: sum {total.tolist()}, mean {mean.tolist()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
