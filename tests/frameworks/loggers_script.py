"""Train with DDP on two processes and log `state.stats()`: loggers_script.py tensorboard|mlflow FOLDER."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import attach

which, folder = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
state = attach(model)
is_first = dist.get_rank() == 0
if which == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter

    if is_first:
        writer = SummaryWriter(folder)
else:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    if is_first:
        mlflow.set_experiment("reduction")
        mlflow.start_run()
for step in range(4):
    model(torch.randn(4, 64)).pow(2).mean().backward()
    if not is_first:
        continue
    if which == "tensorboard":
        for name, value in state.stats().items():
            writer.add_scalar(f"reduction/{name}", value, step)
    else:
        mlflow.log_metrics({f"reduction/{name}": value for name, value in state.stats().items()}, step=step)
if is_first and which == "tensorboard":
    writer.close()
elif is_first:
    mlflow.end_run()
state.close()
dist.destroy_process_group()
