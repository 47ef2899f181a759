"""One rank of a job without torch.distributed: sums until the file FOLDER/stop exists, and checks every sum.

Usage: python sum_until_told.py REDUCERS RANK WORLD_SIZE FOLDER. Writes the number of sums to FOLDER/steps-RANK.
"""

import sys
import time
from pathlib import Path

import torch

from worker_plugin import ReductionState

NUMBERS = 20_000


def main(reducers: str, rank: int, world_size: int, folder: Path) -> None:
    """Sum rank + 1 + the step over all ranks. Rank 0 signals the end in the last number."""
    ranks = world_size * (world_size + 1) // 2
    step = 0
    with ReductionState(
        None if reducers == "-" else reducers, job="told", rank=rank, world_size=world_size
    ) as state:
        while True:
            tensor = torch.full((NUMBERS,), float(rank + 1 + step))
            tensor[-1] = float(rank == 0 and (folder / "stop").exists())
            result = state.all_reduce(tensor).wait()
            assert torch.equal(result[:-1], torch.full((NUMBERS - 1,), float(ranks + world_size * step)))
            step += 1
            (folder / f"steps-{rank}").write_text(f"{step}")
            if result[-1]:
                return
            time.sleep(0.01)  # there are few cores


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
