"""A training that knows little or nothing of reducers: train_plain.py [KIND...]."""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class PassThrough(DistributedDataParallel):
    """A DDP subclass without relevant changes, like mmengine's."""

    def __init__(self, module, *, note="", **named):
        super().__init__(module, **named)
        self.note = note


class WithHook(PassThrough):
    """A DDP subclass with its own averaging, like torchft's."""

    def __init__(self, module):
        super().__init__(module)
        self.register_comm_hook(None, allreduce_hook)


kinds = sys.argv[1:]
dist.init_process_group(
    "reduction" if "other-backend" in kinds else None if "no-backend" in kinds else "gloo"
)
torch.manual_seed(0)
make = (
    PassThrough
    if "subclass" in kinds
    else WithHook
    if "subclass-with-hook" in kinds
    else DistributedDataParallel
)
model = make(torch.nn.Linear(300, 100))
if "own-hook" in kinds:
    model.register_comm_hook(None, allreduce_hook)
if "attach" in kinds:
    from worker_plugin import attach

    state = attach(model, **({"wire_dtype": "bf16"} if "settings" in kinds else {}))
models = [model]
if "two-models" in kinds:
    models.append(DistributedDataParallel(torch.nn.Linear(300, 100)))
torch.manual_seed(dist.get_rank())
for model in models:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(8, 300)
        if "by-hand" in kinds:
            model.module(inputs).pow(2).mean().backward()
            for parameter in model.parameters():
                parameter.grad /= dist.get_world_size()
                dist.all_reduce(parameter.grad)
        else:
            model(inputs).pow(2).mean().backward()
        optimizer.step()
hooks = [model._get_ddp_logging_data().get("comm_hook") for model in models]
total = sum(model.module.weight.double().sum().item() for model in models)
sys.stdout.write(f"rank {dist.get_rank()}: {hooks} {total.hex()}\n")
dist.destroy_process_group()
# A thread of Gloo drops its last collective, which refers to Python objects, a moment after the wait for it has
# returned. If the interpreter ends in that moment, torch 2.13 aborts even without our code, in up to 7 of 20 runs.
time.sleep(0.5)
