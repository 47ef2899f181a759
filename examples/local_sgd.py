"""Train on sites with slow links between them: each rank trains on its own, and every H steps all changes are averaged.

    torchrun --nproc-per-node 2 examples/local_sgd.py                      on this machine
    torchrun --nnodes 4 ... examples/local_sgd.py --inner-steps 100        between sites; or: --over gloo

REDUCTION_REDUCERS names the reducers. This is DiLoCo (Douillard et al., arXiv 2311.08105): the inner optimizer is
AdamW, the outer one is SGD with Nesterov momentum on the mean of the ranks' changes. Only that mean crosses the links,
in int8, so they carry 3.9 H times fewer bytes than with DDP. All ranks have the same weights after every outer step.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch import nn

from reduction_server import ReductionState


def main() -> None:
    """Train a small model on a synthetic task. Rank 0 prints the loss of each outer step."""
    parser = argparse.ArgumentParser(description="Local training with an outer optimizer.")
    parser.add_argument("--inner-steps", type=int, default=20, help="of each rank between two outer steps")
    parser.add_argument("--outer-steps", type=int, default=10)
    parser.add_argument("--wire-dtype", default="int8", help="of the outer all-reduce; none: float32")
    parser.add_argument("--over", choices=["reducers", "gloo"], default="reducers")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, options.width), nn.Tanh(), nn.Linear(options.width, 32))
    teacher = torch.randn(32, 32) / 32**0.5
    inner = torch.optim.AdamW(model.parameters(), 1e-3)
    # The weights that all ranks share, and the outer optimizer.
    shared = [parameter.detach().clone() for parameter in model.parameters()]
    outer = torch.optim.SGD(shared, 0.7, momentum=0.9, nesterov=True)
    wire_dtype = None if options.wire_dtype == "none" else options.wire_dtype
    state = ReductionState(wire_dtype=wire_dtype) if options.over == "reducers" else None

    torch.manual_seed(1 + dist.get_rank())  # every rank has its own data
    for step in range(options.outer_steps):
        losses = []
        for _ in range(options.inner_steps):
            inputs = torch.randn(64, 32)
            loss = (model(inputs) - torch.sin(inputs @ teacher)).pow(2).mean()
            inner.zero_grad()
            loss.backward()
            inner.step()
            losses.append(loss.item())
        with torch.no_grad():
            changes = [before - now for before, now in zip(shared, model.parameters(), strict=True)]
            flat = torch.cat([change.flatten() for change in changes])
            if state is not None:
                state.all_reduce(flat, dist.ReduceOp.AVG).wait()
            else:
                dist.all_reduce(flat)
                flat /= dist.get_world_size()
            parts = flat.split([change.numel() for change in changes])
            for weight, part in zip(shared, parts, strict=True):
                weight.grad = part.view_as(weight)
            outer.step()
            for parameter, weight in zip(model.parameters(), shared, strict=True):
                parameter.copy_(weight)
        if dist.get_rank() == 0:
            print(f"outer step {step}: loss {sum(losses) / len(losses):.6f}", flush=True)
    weights = torch.cat([weight.flatten() for weight in shared])
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    if dist.get_rank() == 0:
        print(f"weights of the ranks: {' '.join(digest[:16] for digest in digests)}", flush=True)
    if state is not None:
        state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
