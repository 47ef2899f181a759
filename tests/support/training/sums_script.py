"""One rank that sums tensors: sums_script.py RANK WORLD_SIZE REDUCER ROUNDS NUMEL SLEEP_S.

Says each round on stdout.
"""

import sys
import time

import torch

from worker_plugin import ReductionState

rank, world_size, reducer, rounds, numel, sleep_s = sys.argv[1:]
torch.set_num_threads(1)
with ReductionState([reducer], job="shares", rank=int(rank), world_size=int(world_size)) as state:
    state.connect()
    for number in range(int(rounds)):
        time.sleep(float(sleep_s))
        state.all_reduce(torch.ones(int(numel))).wait()
        print(f"round {number}", flush=True)
