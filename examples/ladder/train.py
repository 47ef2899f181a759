"""The ladder: one training on five rungs, from a single process to HSDP over reducers; see docs/ladder.md.

pip install webdataset pillow tensorboard
python examples/ladder/shards.py /tmp/shards
python examples/ladder/train.py /tmp/shards                                     or: --rung dataparallel
torchrun --nproc-per-node 4 examples/ladder/train.py /tmp/shards --rung ddp     or: reducers, hsdp
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint import load, save
from resnet import resnet18
from rungs import RUNGS, join
from shards import CLASSES, batches
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter


def parse() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description="Train on a rung of the ladder.")
    parser.add_argument("shards", type=Path, help="folder of the shards")
    parser.add_argument("--rung", choices=RUNGS, default="one")
    parser.add_argument("--out", type=Path, default="ladder-run", help="folder for scalars and checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on after the last epoch that was finished")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="images of a step, of all ranks together")
    parser.add_argument("--width", type=int, default=64, help="of the ResNet; 64 is ResNet-18")
    parser.add_argument("--shard", type=int, default=2, help="hsdp: ranks of a node")
    parser.add_argument("--across", default="reduction", help="hsdp: backend across nodes; compare with gloo")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    return parser.parse_args()


def main() -> None:
    """Train for some epochs. Rank 0 prints, and writes TensorBoard's scalars and the checkpoint."""
    options = parse()
    device = options.device
    rank, ranks = join(options.rung, device)
    shards = sorted(map(str, options.shards.glob("*.tar")))
    if not shards or len(shards) % ranks or options.batch % ranks:
        raise SystemExit(f"{ranks} ranks cannot equally share {len(shards)} shards or {options.batch} images")

    torch.manual_seed(0)
    model = resnet18(CLASSES, options.width).to(device)
    trained = RUNGS[options.rung](model, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    checkpoint = options.out / "checkpoint.pt"
    done, step = load(checkpoint, model, optimizer) if options.resume else (0, 0)
    board = SummaryWriter(options.out, purge_step=step + 1) if rank == 0 else None
    for epoch in range(done + 1, options.epochs + 1):
        began, seen = time.perf_counter(), 0
        for images, classes in batches(shards, epoch, options.batch // ranks):
            loss = cross_entropy(trained(images.to(device)), classes.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, seen = step + 1, seen + ranks * len(images)
            if board:
                board.add_scalar("loss", loss.item(), step)
        seconds = time.perf_counter() - began
        if board:
            board.add_scalar("epoch/seconds", seconds, step)
            board.add_scalar("epoch/images_per_s", seen / seconds, step)
            print(f"epoch {epoch}: loss {loss.item():.4f}, {seen} images, {seconds:.3f} s", flush=True)
            board.flush()
        save(checkpoint, model, optimizer, epoch, step)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
