"""One worker of an elastic job: it trains a small model and prints a line of JSON after every step.

Variables: STEPS; STOP, a file: once it exists, all end after the same step; PAUSE_S between steps; WIDTH of the
model; UNUSED=1 leaves a parameter without a gradient; CLIP=1 clips weights after the optimizer's step; HOOK=step or
HOOK=load sums something in a hook of the optimizer's step, or of the model when it loads a state; GROUPS=1 gives each
parameter its own group in the optimizer; SECRET=1 gives the optimizer something that cannot be sent, after three
steps; SKIPS=1 skips every fifth step; LEAVES=1 leaves after a SIGTERM; HOST, a folder in place of /dev/shm; FREEZE,
the name of a method of Training that takes the others' state: it prints a line and then hangs there; SAVES, a file to
which the training is saved on an error, and LOADS, one to start from.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_plugin import ReductionState, attach
from worker_plugin.elastic.membership import predecessor
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.sampler import ElasticSampler


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


def freeze(*_: object) -> None:
    print(json.dumps({"freezes": True, "step": 0}), flush=True)
    time.sleep(1e6)


def backward_pass(batch: list[int]) -> None:
    """Run one; the first worker may run out of memory in it, so that all skip the step."""
    try:
        loss = model(data[batch]).pow(2).mean()
        if "SKIPS" in os.environ and step % 5 == 4 and rank == state.members[0] and local == 0:
            raise torch.OutOfMemoryError
        loss.backward()
    except torch.OutOfMemoryError:
        state.skip_step()


def sum_something(*_: object) -> None:
    state.all_reduce(torch.ones(3)).wait()


predecessor.FOLDER = Path(os.environ.get("HOST", predecessor.FOLDER))
if "FREEZE" in os.environ:
    setattr(Training, os.environ["FREEZE"], freeze)
steps, pause_s = int(os.environ["STEPS"]), float(os.environ.get("PAUSE_S", "0.05"))
width = int(os.environ.get("WIDTH", "16"))
if "LOCAL_WORLD_SIZE" in os.environ:  # the ranks of one node, which are one worker
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
local, local_size = dist.get_rank(), dist.get_world_size()
state = ReductionState(elastic=True)
rank = state.config.rank
torch.manual_seed(100 * rank + local)  # so all must adopt the first worker's weights
net = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))
net.register_parameter("spare", nn.Parameter(torch.zeros(1)))
net.spare.requires_grad = "UNUSED" in os.environ
model = DistributedDataParallel(net, find_unused_parameters=True)
net.register_buffer("cache", torch.zeros(4), persistent=False)
groups = [{"params": [one]} for one in net.parameters()] if "GROUPS" in os.environ else net.parameters()
optimizer = torch.optim.Adam(groups, 0.01)
attach(model, state)
state.watch(model, every=2, optimizer=optimizer)
state.report_steps(model)
if os.environ.get("HOOK") == "step":
    optimizer.register_step_pre_hook(sum_something)
if os.environ.get("HOOK") == "load":
    net.register_load_state_dict_post_hook(sum_something)
data = torch.randn(50_000, 8, generator=torch.Generator().manual_seed(1))
sampler = ElasticSampler(len(data), 4)
changes: list[object] = []
state.on_change(lambda before, after: changes.append([before, after]))


def weights() -> str:
    moments = [moment for one in optimizer.state.values() for moment in one.values()]
    return digest([*net.parameters(), *moments])


def save(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if state.members:
        states = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, **progress, "weights": weights()}, os.environ["SAVES"])
    sys.__excepthook__(kind, error, traceback)


if "SAVES" in os.environ:
    sys.excepthook = save
step, stops = 0, False
if "LOADS" in os.environ:
    saved = torch.load(os.environ["LOADS"])
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.load_state_dict(saved["sampler"])
    step = saved["step"]
while step < steps and not stops:
    progress = {"step": step, "sampler": sampler.state_dict()}
    progress = state.sync(net, optimizer, progress)
    step = progress["step"]
    sampler.load_state_dict(progress["sampler"])
    buffers = digest(list(net.buffers()))
    batch = sampler.take(state.members, rank)[local::local_size]
    state.weigh(len(batch))
    optimizer.zero_grad()
    backward_pass(batch)
    # A sum and an average beside DDP's show whose contributions are included.
    ranks = torch.zeros(32, dtype=torch.int32)
    ranks[rank] = 1
    ranks[31] = os.path.exists(os.environ["STOP"])
    mean = torch.tensor([float(rank)])
    futures = [state.all_reduce(ranks), state.all_reduce(mean, dist.ReduceOp.AVG)]
    torch.futures.wait_all(futures)
    if state.last_step.counts:
        optimizer.step()
    if "CLIP" in os.environ:
        with torch.no_grad():
            net[0].weight.clamp_(-0.1, 0.1)
    step += 1
    if step == 3:  # as caches do that depend on the longest sample so far
        net.register_buffer("cache", torch.arange(9.0), persistent=False)
        if "SECRET" in os.environ:
            optimizer.param_groups[0]["secret"] = print
    stops, ranks[31] = bool(ranks[31]), 0
    line = {
        "step": step,
        "local": local,
        "members": state.members,
        "weights": weights(),
        "buffers": buffers,
        "in_sum": ranks.nonzero().flatten().tolist(),
        "mean": mean.item(),
        "batch": batch,
        "changes": changes,
        "skipped": state.last_step.skipped,
        "at": time.time(),
    }
    sys.stdout.write(json.dumps(line) + "\n")  # in one write, because a node's ranks share one file
    sys.stdout.flush()
    time.sleep(pause_s)
    if "LEAVES" in os.environ and state.should_leave():
        state.leave()
        break
state.close()
