"""A training that knows nothing of reducers: train_plain.py [own-hook | two-models | other-backend]."""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("reduction" if "other-backend" in sys.argv else "gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(300, 100))
if "own-hook" in sys.argv:
    model.register_comm_hook(None, allreduce_hook)
models = [model]
if "two-models" in sys.argv:
    models.append(DistributedDataParallel(torch.nn.Linear(300, 100)))
torch.manual_seed(dist.get_rank())
for model in models:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 300)).pow(2).mean().backward()
        optimizer.step()
hooks = [model._get_ddp_logging_data().get("comm_hook") for model in models]
total = sum(model.module.weight.double().sum().item() for model in models)
sys.stdout.write(f"rank {dist.get_rank()}: {hooks} {total.hex()}\n")
dist.destroy_process_group()
# A thread of Gloo drops its last collective, which refers to Python objects, a moment after the wait for it has
# returned. If the interpreter ends meanwhile torch 2.13 aborts, without our code too, in up to 7 of 20 runs.
time.sleep(0.5)
