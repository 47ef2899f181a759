"""Train with Accelerate on two processes: accelerate_script.py gloo|hook|backend."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

which = sys.argv[1]
if which == "backend":
    dist.init_process_group("reduction")  # on a CPU Accelerate keeps an existing group
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
generator = torch.Generator().manual_seed(1)
data = DataLoader(TensorDataset(torch.randn(32, 64, generator=generator)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
if which == "hook":
    from worker_plugin import attach

    state = attach(model)
for (batch,) in data:
    optimizer.zero_grad()
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
print(f"weights {accelerator.unwrap_model(model).weight.double().sum().item().hex()}\n", end="", flush=True)
if which == "hook":
    state.close()
dist.destroy_process_group()
